"""The tests of octavo; `tests.support` holds what several rooms need."""
