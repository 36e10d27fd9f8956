"""Forecasts for people and services: load, observe, predict, explain."""
