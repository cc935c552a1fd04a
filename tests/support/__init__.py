"""Writers of small model files for tests."""
