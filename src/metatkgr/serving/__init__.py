"""Forecasts over HTTP, with a page for people; needs the extra ``serve``."""
