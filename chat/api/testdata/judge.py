"""Makes of requests what vLLM makes of them, by its own code: a JSON object a line in, one a line out.

The code is that of an unpacked wheel, whose folder is the argument. Only the files that read
requests are loaded; whatever else they import stands for itself and does nothing.
"""

import importlib
import json
import os
import sys
import types

import pydantic

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../internal/testing/chattest"))
import wheel

READ = {
    "vllm.exceptions",
    "vllm.tool_parsers.utils",
    "vllm.entrypoints.anthropic.protocol",
    "vllm.entrypoints.anthropic.serving",
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.serve.engine.protocol",
    "vllm.entrypoints.openai.chat_completion.protocol",
    "vllm.entrypoints.openai.chat_completion.message_assembly",
    "vllm.entrypoints.openai.responses.protocol",
    "vllm.entrypoints.openai.responses.utils",
    "vllm.entrypoints.pooling.base.protocol",
    "vllm.entrypoints.pooling.scoring.protocol",
    "vllm.entrypoints.pooling.scoring.typing",
    "vllm.entrypoints.pooling.scoring.utils",
    "vllm.entrypoints.pooling.scoring.io_processor",
}
ABSENT = {"vllm", "torch", "transformers", "mcp", "cachetools", "msgspec", "openai_harmony", "fastapi", "jinja2", "regex", "partial_json_parser"}


wheel.load(sys.argv[1], READ, ABSENT)
importlib.import_module("vllm.envs").VLLM_MAX_STOP_STRINGS = 16
importlib.import_module("vllm.logger").init_logger = lambda name: wheel.Silent()
anthropic = importlib.import_module("vllm.entrypoints.anthropic.protocol")
serving = importlib.import_module("vllm.entrypoints.anthropic.serving").AnthropicServingMessages
protocol = importlib.import_module("vllm.entrypoints.openai.responses.protocol")
utils = importlib.import_module("vllm.entrypoints.openai.responses.utils")
scoring = importlib.import_module("vllm.entrypoints.pooling.scoring.io_processor")
scores = importlib.import_module("vllm.entrypoints.pooling.scoring.protocol")
pairs = importlib.import_module("vllm.entrypoints.pooling.scoring.utils")
pairs.parse_chat_message_content_parts = lambda role, parts, **_: [{"role": role, "content": "".join(p["text"] for p in parts)}]
pairs.ChatCompletionContentPartTextParam = dict
pairs.MultiModalItemTracker = type("Tracker", (), {"__init__": lambda *_: None, "create_parser": lambda _: None, "resolve_items": lambda _: (None, None)})
scoring.prompt_to_seq = list
scoring.parse_model_prompt = lambda _, prompt: prompt
scoring.EncodeCMPLRenderParams = scoring.ScoringRenderParams = dict


def chat(messages, tools, kwargs, effort, choice, go_on):
    kwargs = dict(kwargs or {})
    if effort is not None:
        kwargs.setdefault("enable_thinking", effort != "none")
        kwargs["reasoning_effort"] = effort
    out = {"messages": messages, "chat_template_kwargs": kwargs}
    if tools is not None:
        out["tools"] = tools
        if choice == "none":
            out["tool_choice"] = "none"
    if go_on:
        out.update(add_generation_prompt=False, continue_final_message=True)
    return out


def of_messages(q):
    kind = anthropic.AnthropicCountTokensRequest if q["path"].endswith("count_tokens") else anthropic.AnthropicMessagesRequest
    request = serving.to_chat_completion_request(
        kind.model_validate(q["body"]),
        merge_inline_system=q["system_first"],
        disabled_thinking_effort=q["disabled"],
    )
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    return chat(request.messages, tools, request.chat_template_kwargs, request.reasoning_effort, request.tool_choice, False)


def of_responses(q):
    request = protocol.ResponsesRequest.model_validate(q["body"])
    messages = utils.construct_input_messages(
        request_instructions=request.instructions, request_input=request.input, prev_msg=q.get("past")
    )
    effort = request.reasoning.effort if request.reasoning else None
    tools = utils.construct_tool_dicts(request.tools, request.tool_choice)
    go_on = utils.should_continue_final_message(request.input)
    return chat(messages, tools, request.chat_template_kwargs, effort, request.tool_choice, go_on)


class Words:
    """A tokenizer: of a text the text."""

    def __call__(self, text, **_):
        return {"input_ids": text}


def of_scores(q):
    kind = scores.RerankRequest if q["path"] == "/rerank" else scores.ScoreRequest
    request = pydantic.TypeAdapter(kind).validate_python(q["body"])
    cls = scoring.BiEncoderIOProcessor if q["rule"] == "apart" else scoring.CrossEncoderIOProcessor
    p = cls.__new__(cls)
    p.model_config = types.SimpleNamespace(max_model_len=4096, encoder_config=None)
    p.is_multimodal_model, p.architecture, p.tokenizer = False, "A", Words()
    p.supports_score_template, p.use_sep_token, p.saved_chat_template = False, False, None
    p.chat_template = "template" if q["rule"] == "template" else None
    p._params_to_seq = p._lora_request_to_seq = p._priority_to_seq = lambda _, n: [None] * n
    first = p.get_request_factory_online(
        types.SimpleNamespace(request=request, pooling_params=None, prompt_extras=None, lora_request=None, priorities=None)
    )[0]
    if q["rule"] == "apart":
        return {"prompt": first["prompts"]}
    said = {}

    def template(_, __, messages, chat_template, tools, tokenize, **kwargs):
        said.update(messages=messages, chat_template_kwargs=kwargs, add_generation_prompt=False)
        return ""

    scoring.safe_apply_chat_template = template
    text, _ = p.get_score_prompt(
        first["data_1"], first["data_2"], {}, chat_template=first["chat_template"], max_tokens_per_query=first["max_tokens_per_query"],
        max_tokens_per_doc=first["max_tokens_per_doc"], chat_template_kwargs=request.chat_template_kwargs,
    )
    return said or {"prompt": text}


def made_of(q):
    if q["path"] in ("/score", "/rerank"):
        return of_scores(q)
    return of_responses(q) if q["path"] == "/v1/responses" else of_messages(q)


for line in sys.stdin:
    try:
        q = json.loads(line)
        answer = json.dumps({"chat": made_of(q)}, default=wheel.plain)
    except Exception as why:  # whatever it is, the engine would refuse the request
        answer = json.dumps({"refused": (type(why).__name__ + ": " + str(why))[:300]})
    print(answer, flush=True)
