"""Measuring octavo: load, percentiles, reports."""
