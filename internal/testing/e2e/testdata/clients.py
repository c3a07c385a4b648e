"""Talks to kvrouter with the openai and anthropic packages: two turns of a conversation by each API.

Arguments: the router's URL, and "split" where there are prefill workers. Whatever is not as it
should be ends the program with an error.
"""

import json
import sys
import time
import urllib.request

import anthropic
import openai

URL, SPLIT = sys.argv[1], sys.argv[2:] == ["split"]
openai_client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
anthropic_client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def worker(headers):
    return headers["X-Kvatlas-Prefill-Worker" if SPLIT else "X-Kvatlas-Worker"]


class Answer:
    """What an API answers: text, cached tokens, worker and, of a response, its id."""

    def __init__(self, text, cached, headers, name=None):
        self.text, self.cached, self.worker, self.name = text, cached, worker(headers), name
        assert self.text, "no text"


def chat(topic, stream, tools, before):
    messages = [{"role": "system", "content": topic}, {"role": "user", "content": "so"}]
    more = {}
    if tools:
        more["tools"] = [{"type": "function", "function": {"name": "weather", "description": "tells it", "parameters": SCHEMA}}]
    if before:
        said = {"role": "assistant", "content": before.text}
        if tools:
            said["tool_calls"] = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]
        messages += [said, {"role": "tool", "tool_call_id": "c1", "content": "rain"} if tools else {"role": "user", "content": "and?"}]
    if not stream:
        raw = openai_client.chat.completions.with_raw_response.create(model="m", messages=messages, max_tokens=8, **more)
        answer = raw.parse()
        return Answer(answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens, raw.headers)
    with openai_client.chat.completions.with_streaming_response.create(
        model="m", messages=messages, max_tokens=8, stream=True, stream_options={"include_usage": True}, **more
    ) as raw:
        text, usage = "", None
        for chunk in raw.parse():
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        return Answer(text, usage.prompt_tokens_details.cached_tokens, raw.headers)


def of_response(response, headers):
    return Answer(response.output_text, response.usage.input_tokens_details.cached_tokens, headers, response.id)


def responses(topic, stream, tools, before, named=False):
    turn = [{"role": "user", "content": "so"}]
    more = {"instructions": topic}
    if tools:
        more["tools"] = [{"type": "function", "name": "weather", "description": "tells it", "parameters": SCHEMA, "strict": False}]
    if before and named:
        turn, more["previous_response_id"] = "and?", before.name
    elif before:
        turn.append({"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{"type": "output_text", "text": before.text, "annotations": []}]})
        if tools:
            turn.append({"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'})
            turn.append({"type": "function_call_output", "call_id": "c1", "output": "rain"})
        else:
            turn.append({"role": "user", "content": "and?"})
    if not stream:
        raw = openai_client.responses.with_raw_response.create(model="m", input=turn, max_output_tokens=8, **more)
        return of_response(raw.parse(), raw.headers)
    with openai_client.responses.with_streaming_response.create(model="m", input=turn, max_output_tokens=8, stream=True, **more) as raw:
        kinds, last = [], None
        for event in raw.parse():
            kinds.append(event.type)
            last = event
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
        return of_response(last.response, raw.headers)


def named_responses(topic, stream, tools, before):
    return responses(topic, stream, tools, before, named=True)


def messages(topic, stream, tools, before):
    turns = [{"role": "user", "content": "so"}]
    more = {}
    if tools:
        more["tools"] = [{"name": "weather", "description": "tells it", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}]
    if before:
        said = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": before.text}]
        then = [{"type": "text", "text": "and?"}]
        if tools:
            said.append({"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}})
            then = [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]}]
        turns += [{"role": "assistant", "content": said}, {"role": "user", "content": then}]
    system = [{"type": "text", "text": topic, "cache_control": {"type": "ephemeral"}}]
    ask = {"model": "m", "max_tokens": 8, "system": system, "messages": turns, **more}
    if not stream:
        raw = anthropic_client.messages.with_raw_response.create(**ask)
        answer = raw.parse()
        return Answer(answer.content[0].text, answer.usage.cache_read_input_tokens, raw.headers)
    with anthropic_client.messages.stream(**ask) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
        assert final.content[0].text == text
        return Answer(text, final.usage.cache_read_input_tokens, events.response.headers)


def known(topic):
    """Waits until the router knows that a worker holds what a conversation begins with."""
    text = ("system: %s\n" % topic).encode()
    ids = [int.from_bytes(text[i : i + 4], "big") for i in range(0, len(text) - 4, 4)]
    ask = {"model_name": "m", "token_ids": ids, "phase": "prefill" if SPLIT else "aggregate"}
    if not SPLIT:
        del ask["phase"]
    end = time.monotonic() + 60
    while True:
        request = urllib.request.Request(URL + "/v1/select", data=json.dumps(ask).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found = json.load(answer)
        if found["overlap"]["gpu"] >= len(ids) - 64:
            return
        assert time.monotonic() < end, found
        time.sleep(0.02)


held = 0
for number, api in enumerate((chat, responses, messages, named_responses)):
    if SPLIT and api is named_responses:
        continue  # only the decode worker keeps it, which then computes the prompt alone
    for stream in (False, True):
        for tools in (False, True):
            topic = ("%s %s %s: a long instruction. " % (api.__name__, stream, tools)) * 400
            first = api(topic, stream, tools, None)
            known(topic)
            second = api(topic, stream, tools, first)
            what = "%s, stream %s, tools %s" % (api.__name__, stream, tools)
            assert first.worker == second.worker, "%s: from worker %s to %s" % (what, first.worker, second.worker)
            assert second.cached >= len(topic) // 4 - 64, "%s: %s of %d tokens were cached" % (what, second.cached, len(topic) // 4)
            print("%s: worker %s, %s tokens of the second turn were cached" % (what, second.worker, second.cached))
            held += 1
try:
    openai_client.responses.create(model="m", input="and?", previous_response_id="resp_nobodys")
    raise AssertionError("a response that nobody has is gone on with")
except openai.NotFoundError:
    pass
print("%d conversations stayed where they were" % held)
