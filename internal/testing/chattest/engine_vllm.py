"""Makes the prompts of requests with vLLM's own code: a JSON object a line in, one a line out.

The folder of the unpacked wheel is the argument. A request has "encoder" (one of vLLM's, or ""
for what a template would be given), "format" (string or openai), "body" and "defaults". The
answer has "text" or "ids", or "error".
"""

import importlib
import json
import sys
import types

import wheel

READ = {
    "vllm.exceptions",
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.serve.engine.protocol",
    "vllm.entrypoints.openai.chat_completion.protocol",
    "vllm.entrypoints.openai.parser.harmony_utils",
    "vllm.tool_parsers.utils",
    "vllm.renderers.params",
    "vllm.renderers.chat_utils",
    "vllm.renderers.chat_utils.chat_message",
    "vllm.renderers.chat_utils.chat_template",
    "vllm.renderers.chat_utils.content_parser",
    "vllm.renderers.chat_utils.item_tracker",
    "vllm.renderers.chat_utils.tool_call",
    "vllm.renderers.chat_utils.types",
    "vllm.renderers.online_renderer",
    "vllm.tokenizers.deepseek_v32",
    "vllm.tokenizers.deepseek_v32_encoding",
    "vllm.tokenizers.deepseek_v4",
    "vllm.tokenizers.deepseek_v4_encoding",
    "vllm.tokenizers.deepseek_v41",
    "vllm.tokenizers.deepseek_v41_encoding",
    "vllm.tokenizers.mistral",
}
ABSENT = {"vllm", "torch", "transformers", "mcp", "cachetools", "msgspec", "fastapi", "jinja2", "regex", "partial_json_parser", "PIL", "mistral_common", "huggingface_hub", "numpy"}

wheel.load(sys.argv[1], READ, ABSENT)
load = importlib.import_module
load("vllm.envs").VLLM_MAX_STOP_STRINGS = 16
load("vllm.envs").VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS = False
load("vllm.envs").VLLM_SYSTEM_START_DATE = "2026-02-03"
load("vllm.logger").init_logger = lambda name: wheel.Silent()
params = load("vllm.renderers.params")
renderers = load("vllm.renderers")
renderers.ChatParams, renderers.merge_kwargs, renderers.map_reasoning_effort = params.ChatParams, params.merge_kwargs, params.map_reasoning_effort
utils = load("vllm.renderers.chat_utils")
protocol = load("vllm.entrypoints.openai.chat_completion.protocol")
load("vllm.utils.mistral").mt = load("vllm.tokenizers.mistral")
online = load("vllm.renderers.online_renderer")
harmony = load("vllm.entrypoints.openai.parser.harmony_utils")

CONFIG = types.SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False, is_multimodal_model=False)


class Tokenizer:
    """What the encoders wrap: it only says what it would encode."""

    def get_added_vocab(self):
        return {}

    def encode(self, text, **kwargs):
        return text


ENCODERS = {
    "deepseek_v32": load("vllm.tokenizers.deepseek_v32").get_deepseek_v32_tokenizer(Tokenizer()),
    "deepseek_v4": load("vllm.tokenizers.deepseek_v4").get_deepseek_v4_tokenizer(Tokenizer()),
    "deepseek_v41": load("vllm.tokenizers.deepseek_v41").get_deepseek_v41_tokenizer(Tokenizer()),
}


def answer(q):
    request = protocol.ChatCompletionRequest.model_validate(q["body"])
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    if q["encoder"] == "gpt_oss":
        made = []
        online.tokens_input = lambda ids, **kwargs: made.append(ids)
        engine = types.SimpleNamespace(supports_browsing=False, supports_code_interpreter=False, reasoning_effort_map={}, renderer=None)
        online.OnlineRenderer._make_request_with_harmony(engine, request, tools is not None)
        return {"ids": made[0]}
    defaults = params.merge_kwargs(q["defaults"], {"tools": tools, "tokenize": False})
    chat = request.build_chat_params(None, q["format"], reasoning_effort_map={}).with_defaults(defaults)
    conversation, _, _ = utils.parse_chat_messages(request.messages, CONFIG, content_format=q["format"])
    kwargs = chat.get_apply_chat_template_kwargs()
    if q["encoder"]:
        return {"text": ENCODERS[q["encoder"]].apply_chat_template(conversation=conversation, messages=request.messages, **kwargs)}
    # transformers puts a message's reasoning first, under the name that gpt-oss reads.
    conversation = [{"thinking": m["reasoning"], **m} if "reasoning" in m else m for m in conversation]
    shown = [conversation, kwargs.get("tools"), *[kwargs.get(name, "-") for name in ("add_generation_prompt", "enable_thinking", "reasoning_effort", "extra")]]
    return {"text": "\n".join(json.dumps(x, ensure_ascii=False, default=wheel.plain) for x in shown)}


for line in sys.stdin:
    try:
        out = json.dumps(answer(json.loads(line)))
    except Exception as why:  # whatever it is, the engine would refuse the request
        out = json.dumps({"error": (type(why).__name__ + ": " + str(why))[:400]})
    print(out, flush=True)
