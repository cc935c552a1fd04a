"""What callers use: `LLM` for scripts, `AsyncLLM` for servers."""

from octavo.client.async_llm import AsyncLLM
from octavo.client.inputs import InputProcessor
from octavo.client.llm import LLM

__all__ = ["LLM", "AsyncLLM", "InputProcessor"]
