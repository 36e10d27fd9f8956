"""Forecast the next facts of newly emerged entities in temporal knowledge graphs."""
