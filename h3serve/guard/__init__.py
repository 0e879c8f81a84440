"""Regression guard for people who run H3 in CI."""
