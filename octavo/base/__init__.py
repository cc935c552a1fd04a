"""The words every room shares: errors, sampling parameters, outputs, the step contract."""
