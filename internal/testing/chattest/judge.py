"""Renders templates as transformers does: one JSON object a line in, one a line out.

A request has "source" and "vars" for a template alone, or "template", "request", "defaults" and
"tokens" for a body of /v1/chat/completions. The answer has "text", or "error" and, for
raise_exception, "raised".
"""

import datetime
import functools
import json
import signal
import sys

import jinja2
from jinja2 import nodes
from transformers.utils import chat_template_utils as utils


class FixedClock(datetime.datetime):
    """The clock of the tests: strftime_now must give the same here and there."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 2, 3, 14, 5, 9)


class Slow(Exception):
    pass


def too_slow(signum, frame):
    raise Slow("slow")


def reads(node, variable, key=None):
    """Whether node is the variable, or its attribute key, behind filters, tests and slices."""
    while isinstance(node, (nodes.Filter, nodes.Test)) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    if key is not None:
        if isinstance(node, nodes.Getattr) and node.attr == key:
            node = node.node
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == key:
            node = node.node
        else:
            return False
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == variable


@functools.lru_cache(maxsize=None)
def reads_parts(source):
    """vLLM's rule by which contents are lists of parts."""
    tree = utils._compile_jinja_template(source).environment.parse(source)
    variables, todo = {"messages"}, ["messages"]
    try:
        while todo:
            variable = todo.pop()
            for node in tree.find_all(nodes.Assign):
                if reads(node.node, variable) and node.target.name not in variables:
                    variables.add(node.target.name)
                    todo.append(node.target.name)
        loops = list(tree.find_all(nodes.For))
        messages = {loop.target.name for loop in loops if any(reads(loop.iter, v) for v in variables)}
        for loop in loops:
            if any(reads(loop.iter, m, "content") for m in messages):
                return isinstance(loop.target, nodes.Name)
    except AttributeError:  # a tuple is no name
        pass
    return False


MEDIA = {"image_url": "image", "input_image": "image", "audio_url": "audio", "input_audio": "audio", "video_url": "video"}


def conversation(messages, parts):
    """What vLLM makes of a request's messages."""
    result = []
    for message in messages:
        content = message.get("content")
        items = []
        for part in [content] if isinstance(content, str) else content or []:
            if isinstance(part, str):
                items.append({"type": "text", "text": part})
                continue
            kind = part["type"]
            if kind in MEDIA:
                items.append({"type": MEDIA[kind]})
                continue
            text = part.get("text" if kind in ("text", "input_text", "output_text") else kind)
            if text is not None:
                rest = {key: value for key, value in part.items() if key not in ("type", "text", "refusal", "thinking", "prompt_cache_breakpoint")}
                items.append({"type": "text", "text": text} | rest)
        if message["role"] == "system":  # without the line that Claude Code puts first
            for item in items:
                if item.get("text", "").startswith("x-anthropic-billing-header"):
                    item["text"] = item["text"].partition("\n")[2] or None
            items = [item for item in items if item.get("text", "") is not None]
        texts = [item["text"] for item in items if item.get("text")]
        out = {"role": message["role"], "content": items if parts else "\n".join(texts)}
        if message["role"] == "assistant":
            if message.get("tool_calls"):
                out["tool_calls"] = []
                for call in message["tool_calls"]:
                    try:
                        arguments = json.loads(call["function"]["arguments"])
                    except json.JSONDecodeError:
                        arguments = {}
                    if not isinstance(arguments, dict):
                        arguments = {}
                    function = {"arguments": arguments, "name": call["function"]["name"]}
                    out["tool_calls"].append({"id": call["id"], "function": function, "type": call["type"]})
            reasoning = message.get("reasoning")
            if reasoning is None:
                reasoning = message.get("reasoning_content")
            if reasoning is not None:
                out["reasoning"] = out["reasoning_content"] = reasoning
        elif message["role"] == "tool":
            if "tool_call_id" in message:
                out["tool_call_id"] = message["tool_call_id"]
            if parts and all("text" in item for item in items):
                out["content"] = "\n".join(texts)
        if isinstance(message.get("name"), str):
            out["name"] = message["name"]
        if message["role"] == "developer":
            out["tools"] = None
        result.append(out)
    return result


def engine(request, template, defaults, tokens):
    """The prompt that vLLM makes of a request."""
    tools = request.get("tools")
    if tools is not None:
        known = ("name", "description", "parameters")
        tools = [
            {
                "type": "function",
                "function": {key: tool["function"].get(key) for key in known}
                | {key: value for key, value in tool["function"].items() if key not in known},
            }
            for tool in tools
        ]
    kwargs = dict(request.get("chat_template_kwargs") or {})
    extra = {
        "add_generation_prompt": request.get("add_generation_prompt", True),
        "continue_final_message": request.get("continue_final_message", False),
        "documents": request.get("documents"),
        "reasoning_effort": request.get("reasoning_effort"),
    }
    if extra["reasoning_effort"] is not None and "enable_thinking" not in kwargs:
        extra["enable_thinking"] = extra["reasoning_effort"] != "none"
    kwargs |= {key: value for key, value in extra.items() if value not in (None, "auto")}
    kwargs = defaults | {key: value for key, value in kwargs.items() if value not in (None, "auto")}
    messages = conversation(request["messages"], reads_parts(template))
    rendered, _ = utils.render_jinja_template([messages], tools=tools, chat_template=template, **(tokens | kwargs))
    return rendered[0]


def answer(request):
    if "request" in request:
        return engine(request["request"], request["template"], request["defaults"], request["tokens"])
    if "source" in request:
        template = utils._compile_jinja_template(request["source"])
        return template.render(**request["vars"])
    return reads_parts(request["template"])


def main():
    utils.datetime = FixedClock
    signal.signal(signal.SIGALRM, too_slow)
    templates = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "define" in request:
            templates[request["define"]] = request["text"]
            continue
        for field in ("source", "template"):
            if isinstance(request.get(field), dict):
                request[field] = templates[request[field]["ref"]]
        signal.alarm(10)
        try:
            out = {"text": answer(request)}
        except jinja2.exceptions.TemplateError as e:
            out = {"error": f"{type(e).__name__}: {e}", "raised": type(e) is jinja2.exceptions.TemplateError}
        except Exception as e:
            out = {"error": f"{type(e).__name__}: {e}"}
        finally:
            signal.alarm(0)
        sys.stdout.write(json.dumps(out) + "\n")
        sys.stdout.flush()


main()
