"""A request's sampling parameters, compiled for a row."""

from octavo.sampling.compile import SeedSource, bad_word_sequences, compile_row

__all__ = ["SeedSource", "bad_word_sequences", "compile_row"]
