"""The wire format, driven by the real openai client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.support.server import Server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)


PROMPT = "hello world"
SETTINGS = {"model": "tiny", "temperature": 0.7, "seed": 11, "max_tokens": 24}
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]


def test_a_stream_joins_to_the_unstreamed_completion(client: openai.OpenAI) -> None:
    whole = client.completions.create(prompt=PROMPT, **SETTINGS)
    chunks = list(client.completions.create(prompt=PROMPT, stream=True, **SETTINGS))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.choices[0].text for chunk in chunks[:-1]), "only the finish chunk is empty"
    assert whole.usage.completion_tokens <= 24
    assert whole.usage.prompt_tokens > 0


def test_a_chat_stream_joins_to_the_unstreamed_reply(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=MESSAGES, **SETTINGS)
    chunks = list(
        client.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **SETTINGS
        )
    )
    role, *texts, finish, usage = chunks
    assert role.choices[0].delta.role == "assistant"
    assert role.choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.content for chunk in texts)
    joined = "".join(chunk.choices[0].delta.content for chunk in texts)
    assert joined == whole.choices[0].message.content
    assert finish.choices[0].finish_reason == whole.choices[0].finish_reason
    assert usage.choices == []
    assert usage.usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_max_completion_tokens_and_length(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_completion_tokens=5, extra_body={"ignore_eos": True}
    )
    assert reply.usage.completion_tokens == 5
    assert reply.choices[0].finish_reason == "length"


def test_stop_strings_cut_the_text(client: openai.OpenAI) -> None:
    free = client.completions.create(prompt=PROMPT, **SETTINGS).choices[0].text
    stop = free[4:7]
    at = free.index(stop)
    for streamed in (False, True):
        reply = client.completions.create(prompt=PROMPT, stop=[stop], stream=streamed, **SETTINGS)
        if streamed:
            text = "".join(chunk.choices[0].text for chunk in reply)
        else:
            text = reply.choices[0].text
            assert reply.choices[0].finish_reason == "stop"
        assert text == free[:at]
    kept = client.completions.create(
        prompt=PROMPT, stop=stop, extra_body={"include_stop_str_in_output": True}, **SETTINGS
    )
    assert kept.choices[0].text == free[: at + len(stop)]


def test_logprobs(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        messages=MESSAGES, logprobs=True, top_logprobs=3, **SETTINGS
    )
    rows = chat.choices[0].logprobs.content
    assert len(rows) == chat.usage.completion_tokens
    assert all(len(row.top_logprobs) >= 3 for row in rows)
    assert all(row.logprob <= 0 for row in rows)
    plain = client.completions.create(prompt=PROMPT, logprobs=2, **SETTINGS)
    found = plain.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == plain.usage.completion_tokens
    none = client.chat.completions.create(messages=MESSAGES, logprobs=True, **SETTINGS)
    assert all(row.top_logprobs == [] for row in none.choices[0].logprobs.content)


def test_several_prompts_are_choices_in_order(client: openai.OpenAI) -> None:
    prompts = ["a b c", [5, 6, 7], "hello"]
    single = [client.completions.create(prompt=p, **SETTINGS).choices[0].text for p in prompts]
    batch = client.completions.create(prompt=["a b c", "hello"], **SETTINGS)
    assert [choice.index for choice in batch.choices] == [0, 1]
    assert [choice.text for choice in batch.choices] == [single[0], single[2]]
    ids = client.completions.create(prompt=[[5, 6, 7], [5, 6, 7]], **SETTINGS)
    assert [choice.text for choice in ids.choices] == [single[1]] * 2
    streamed = {0: "", 1: ""}
    for chunk in client.completions.create(prompt=["a b c", "hello"], stream=True, **SETTINGS):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == {0: single[0], 1: single[2]}


def test_null_is_absent_and_inert_fields_are_taken(client: openai.OpenAI, server: Server) -> None:
    plain = client.completions.create(prompt=PROMPT, **SETTINGS)
    nulls = {"stop": None, "logit_bias": None, "top_p": None, "stream": None, "best_of": None}
    inert = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    body = {"prompt": PROMPT, **SETTINGS, **nulls, **inert}
    status, headers, _ = server.request("/v1/completions", body)
    assert status == 200
    assert set(headers["x-octavo-inert"].split(",")) == set(inert)
    assert server.json("/v1/completions", body)[1]["choices"][0]["text"] == plain.choices[0].text


def test_errors_are_openai_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.completions.create(model="nope", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="x", temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[7] * 600)
    assert caught.value.code == "context_length_exceeded"
    assert "600" in str(caught.value)
    assert "512" in str(caught.value)


def test_models_tokenize_and_detokenize(client: openai.OpenAI, server: Server) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    text = "hello wörld 👋🏽"
    _, found = server.json("/tokenize", {"prompt": text, "return_token_strs": True})
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    _, back = server.json("/detokenize", {"tokens": found["tokens"]})
    assert back == {"prompt": text}
    _, chat = server.json("/tokenize", {"messages": MESSAGES})
    assert chat["count"] > found["count"]
    assert server.json("/tokenize", {"prompt": ""})[1]["tokens"] == []


def test_a_hundred_concurrent_streams_all_finish(client: openai.OpenAI, server: Server) -> None:
    def one(number: int) -> tuple[int, str]:
        text, finish = "", None
        for chunk in client.completions.create(
            model="tiny",
            prompt=[3 + number, 4, 5],
            max_tokens=10 + number % 20,
            temperature=1.0,
            seed=number,
            stream=True,
        ):
            text += chunk.choices[0].text
            finish = chunk.choices[0].finish_reason or finish
        assert finish in ("stop", "length")
        return number, text

    with ThreadPoolExecutor(100) as pool:
        together = dict(pool.map(one, range(100)))
    server.wait_idle()
    assert all(together[number] == one(number)[1] for number in range(0, 100, 17))


def test_parts_of_characters_keep_their_own_bytes(client: openai.OpenAI, server: Server) -> None:
    """Random bytes are parts of characters; each has its name, its bytes and its own offset."""
    vocab = [server.json("/tokenize", {"prompt": text})[1]["tokens"] for text in ("é", "👋", "a")]
    bytes_only = sorted({token for tokens in vocab for token in tokens})
    settings = {**SETTINGS, "temperature": 1.0, "extra_body": {"allowed_token_ids": bytes_only}}
    whole = client.completions.create(prompt=PROMPT, logprobs=5, **settings)
    found = whole.choices[0].logprobs
    assert any(name.startswith("bytes:") for name in found.tokens)
    for name, logprob, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert top[name] == logprob
        assert len(top) >= 5
    offsets = found.text_offset
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(whole.choices[0].text)
    streamed = {"tokens": [], "text_offset": [], "token_logprobs": []}
    for chunk in client.completions.create(prompt=PROMPT, logprobs=5, stream=True, **settings):
        choice = chunk.choices[0]
        assert choice.text or choice.finish_reason
        for key, values in streamed.items():
            values += getattr(choice.logprobs, key) if choice.logprobs else []
    assert all(values == getattr(found, key) for key, values in streamed.items())
    chat = client.chat.completions.create(messages=MESSAGES, logprobs=True, **settings)
    rows = chat.choices[0].logprobs.content
    joined = b"".join(bytes(row.bytes) for row in rows)
    assert joined.decode("utf-8", "replace") == chat.choices[0].message.content


def test_the_default_length_shrinks_to_the_room_that_is_left(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="tiny", prompt=[7] * 505, extra_body={"ignore_eos": True}
    )
    assert reply.usage.completion_tokens == 7
    short = client.completions.create(model="tiny", prompt=[7], extra_body={"ignore_eos": True})
    assert short.usage.completion_tokens == 16
