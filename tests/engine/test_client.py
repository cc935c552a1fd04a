"""The client's two ends without an engine: what goes in is checked, what comes out is cut."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo.base.errors import ConfigError, ContextLengthError, RequestError
from octavo.base.outputs import RequestOutput
from octavo.base.sampling_params import RequestOutputKind, SamplingParams
from octavo.base.step import Finish
from octavo.client.inputs import InputProcessor, load_input_processor, prompt_bytes
from octavo.client.outputs import OutputProcessor, RequestState
from octavo.config import EngineArgs
from octavo.engine.messages import Delta, TokenLogprob
from tests.support.tiny_models import tiny_llama_gguf

CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def door(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InputProcessor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        door = load_input_processor(EngineArgs(model=str(model)), model)
        door.max_model_len = CONTEXT
        door.vocab_size = door.tokenizer.vocab_size
        yield door


def state(door: InputProcessor, **params: object) -> RequestState:
    settings = SamplingParams(**params)  # type: ignore[arg-type]
    return RequestState("r", "p", [1], settings, door.tokenizer, time.monotonic())


def ids_of(door: InputProcessor, text: str) -> list[int]:
    return door.tokenizer.encode(text, add_special_tokens=False)


def feed(
    state: RequestState, ids: list[int], finish: Finish = Finish.LENGTH
) -> list[RequestOutput]:
    """One token per step; the last one ends the request."""
    outputs = []
    for i, token in enumerate(ids):
        state.push(Delta("r", [token], finish=finish if i == len(ids) - 1 else 0))
        output = state.output()
        if output is not None:
            outputs.append(output)
    return outputs


TEXT = "Hello world, ça va? 안녕 👩‍👩‍👧 and the end"


def test_deltas_join_to_the_text_and_none_is_empty(door: InputProcessor) -> None:
    ids = ids_of(door, TEXT)
    outputs = feed(state(door, output_kind=RequestOutputKind.DELTA), ids)
    assert "".join(o.outputs[0].text for o in outputs) == TEXT
    assert [i for o in outputs for i in o.outputs[0].token_ids] == ids
    assert all(o.outputs[0].text for o in outputs[:-1])
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_cumulative_outputs_grow_and_final_only_comes_once(door: InputProcessor) -> None:
    ids = ids_of(door, TEXT)
    outputs = feed(state(door), ids)
    texts = [o.outputs[0].text for o in outputs]
    assert texts[-1] == TEXT
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    final = feed(state(door, output_kind=RequestOutputKind.FINAL_ONLY), ids)
    assert [o.outputs[0].text for o in final] == [TEXT]
    assert final[0].outputs[0].token_ids == ids


def test_a_slow_reader_gets_deltas_merged(door: InputProcessor) -> None:
    ids = ids_of(door, TEXT)
    slow = state(door, output_kind=RequestOutputKind.DELTA)
    for token in ids[:5]:
        slow.push(Delta("r", [token]))
    first = slow.output()
    assert first is not None
    slow.push(Delta("r", ids[5:], finish=Finish.LENGTH))
    second = slow.output()
    assert second is not None
    assert first.outputs[0].text + second.outputs[0].text == TEXT


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_the_text(door: InputProcessor, include: bool) -> None:
    ids = ids_of(door, "abcDEFGHIJ")
    outputs = feed(
        state(
            door,
            stop=["FGH", "zzz"],
            include_stop_str_in_output=include,
            output_kind=RequestOutputKind.DELTA,
        ),
        ids[: len(ids_of(door, "abcDEFGH"))],
        Finish.STOP_STRING,
    )
    text = "".join(o.outputs[0].text for o in outputs)
    assert text == ("abcDEFGH" if include else "abcDE")
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert outputs[-1].outputs[0].stop_reason == "FGH"


def test_a_held_back_stop_prefix_is_flushed_at_the_end(door: InputProcessor) -> None:
    held = state(door, stop="xyzw", output_kind=RequestOutputKind.DELTA)
    outputs = feed(held, ids_of(door, "ab xyz"))
    assert "".join(o.outputs[0].text for o in outputs) == "ab xyz"


def test_stop_strings_do_not_count_before_min_tokens(door: InputProcessor) -> None:
    ids = ids_of(door, "qXqX")
    assert len(ids) == 4
    outputs = feed(state(door, stop="X", min_tokens=2), ids, Finish.STOP_STRING)
    assert outputs[-1].outputs[0].text == "qXq"


def test_a_stop_that_only_the_client_saw_ends_the_request(door: InputProcessor) -> None:
    cut = state(door, stop="b")
    cut.push(Delta("r", ids_of(door, "ab")))
    assert cut.done
    assert cut.cut
    output = cut.output()
    assert output is not None
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("a", "stop")


def test_an_unfinished_character_is_flushed(door: InputProcessor) -> None:
    outputs = feed(state(door), ids_of(door, "안")[:-1])
    assert outputs[-1].outputs[0].text == "�"


def test_logprobs_carry_text_ranks_and_their_sum(door: InputProcessor) -> None:
    a, b = ids_of(door, "ab")
    asked = state(door, logprobs=1)
    asked.push(Delta("r", [a], logprobs=[TokenLogprob(-1.0, 2, [b], [-0.5])]))
    output = asked.output()
    assert output is not None
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert completion.logprobs[0][a].rank == 2
    assert completion.logprobs[0][b].decoded_token == "b"
    assert completion.cumulative_logprob == -1.0


def test_without_detokenizing_ids_come_alone(door: InputProcessor) -> None:
    outputs = feed(state(door, detokenize=False, output_kind=RequestOutputKind.DELTA), [5, 6, 7])
    assert [o.outputs[0].token_ids for o in outputs] == [[5], [6], [7]]
    assert {o.outputs[0].text for o in outputs} == {""}


def test_a_fault_is_an_error_that_says_why(door: InputProcessor) -> None:
    failed = state(door)
    failed.push(Delta("r", [], finish=Finish.FAULT, fault="its logits are not finite"))
    output = failed.output()
    assert output is not None
    assert output.outputs[0].finish_reason == "error"
    assert output.outputs[0].stop_reason == "its logits are not finite"


def test_nothing_follows_the_terminal_output(door: InputProcessor) -> None:
    processor = OutputProcessor()
    processor.add(state(door))
    assert processor.push(Delta("r", [5], aborted=True)) is not None
    assert processor.push(Delta("r", [6])) is None
    assert len(processor) == 0


def test_encode_checks_ids(door: InputProcessor) -> None:
    assert door.encode([0, 5]) == [0, 5]
    for wrong in ([], [door.vocab_size], [-1], [True], [1.5], ["1"], ""):
        with pytest.raises(RequestError) as caught:
            door.encode(wrong)  # type: ignore[arg-type]
        assert caught.value.param == "prompt"
    assert prompt_bytes([1, 2]) == np.array([1, 2], np.int32).tobytes()


def test_chat_is_rendered_and_encoded(door: InputProcessor) -> None:
    text, ids = door.encode_chat([{"role": "user", "content": "Hello"}])
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert door.tokenizer.decode(ids, skip_special_tokens=False) == text
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The world "}]
    text, _ = door.encode_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("assistant\nThe world")
    with pytest.raises(RequestError):
        door.encode_chat([])
    with pytest.raises(RequestError):
        door.encode_chat(messages, continue_final_message=True)


def test_check_settles_max_tokens_within_the_context(door: InputProcessor) -> None:
    prompt = [1] * 60
    assert door.check(prompt, SamplingParams(max_tokens=None)).max_tokens is None
    assert door.check(prompt, SamplingParams(max_tokens=4)).max_tokens == 4
    assert door.check(prompt, SamplingParams(max_tokens=5), clamp=True).max_tokens == 4
    for params, ids in (
        (SamplingParams(max_tokens=5), prompt),
        (SamplingParams(max_tokens=None, min_tokens=5), prompt),
        (SamplingParams(max_tokens=1), [1] * 64),
    ):
        with pytest.raises(ContextLengthError, match="64"):
            door.check(ids, params)


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("logit_bias", {"logit_bias": {10**6: 1.0}}),
        ("stop_token_ids", {"stop_token_ids": [10**6]}),
        ("allowed_token_ids", {"allowed_token_ids": [10**6]}),
        ("stop", {"stop": "x", "detokenize": False}),
        ("allowed_token_ids", {"allowed_token_ids": [2], "min_tokens": 1}),
        ("bad_words", {"bad_words": [" "]}),
        ("bad_words", {"bad_words": ["x" * 70]}),
    ],
)
def test_check_refuses(door: InputProcessor, field: str, params: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        door.check([1], SamplingParams(**params))  # type: ignore[arg-type]
    assert caught.value.param == field


def test_bad_words_come_with_and_without_a_space(door: InputProcessor) -> None:
    params = door.check([1], SamplingParams(bad_words=["world"]))
    assert params.bad_words_token_ids is not None
    texts = [door.tokenizer.decode(ids) for ids in params.bad_words_token_ids]
    assert texts[0] == "world"
    # " world" is one token and "world" several: the variant with a space is another length
    assert len(params.bad_words_token_ids) == 1
    params = door.check([1], SamplingParams(bad_words=["t"]))
    assert params.bad_words_token_ids is not None
    assert [door.tokenizer.decode(ids) for ids in params.bad_words_token_ids] == ["t", " t"]


def test_a_chat_template_option_is_a_file_or_a_template(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }}!")
    for value in (str(file), "{{ messages[0].content }}!"):
        door = load_input_processor(EngineArgs(model=str(model), chat_template=value), model)
        door.vocab_size = door.tokenizer.vocab_size
        assert door.encode_chat([{"role": "user", "content": "a"}])[0] == "a!"
    with pytest.raises(ConfigError, match="chat-template"):
        load_input_processor(EngineArgs(chat_template="no-such-file"), model)
