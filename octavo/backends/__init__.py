"""Backends interpret a program on a device. `api` is the contract."""
