"""Makes the prompts of requests with SGLang's own code: a JSON object a line in, one a line out.

The folder of the unpacked wheel is the argument. A request has "template" or "encoding" (dsv32),
"body" and "defaults". The answer has "text", or "error".
"""

import asyncio
import importlib
import json
import sys
import types

from transformers.utils import chat_template_utils

import wheel

READ = {
    "sglang.srt.entrypoints.openai.protocol",
    "sglang.srt.entrypoints.openai.serving_chat",
    "sglang.srt.entrypoints.openai.chat_encoding",
    "sglang.srt.entrypoints.openai.encoding_dsv32",
    "sglang.srt.function_call.utils",
    "sglang.srt.parser.jinja_template_utils",
    "sglang.srt.parser.hunyuan_reasoning",
}
ABSENT = {"sglang", "torch", "fastapi", "xgrammar", "mistral_common", "partial_json_parser", "numpy", "PIL", "zmq", "requests", "aiohttp", "openai_harmony"}

wheel.load(sys.argv[1], READ, ABSENT)
load = importlib.import_module
context = load("sglang.srt.runtime_context")
settings = types.SimpleNamespace(trust_request_chat_template=False, allow_auto_truncate=False, context_length=None, default_chat_template_kwargs=None)
context.get_serving = context.get_model = lambda: settings
environ = load("sglang.srt.environ")
environ.envs = types.SimpleNamespace(SGLANG_DEFAULT_THINKING=types.SimpleNamespace(get=lambda: False))
protocol = load("sglang.srt.entrypoints.openai.protocol")
serving = load("sglang.srt.entrypoints.openai.serving_chat")
templates = load("sglang.srt.parser.jinja_template_utils")
serving.encoding_dsv32 = load("sglang.srt.entrypoints.openai.encoding_dsv32")
serving.parallel_prompt_encode = lambda tokenizer, text, kwargs: text


class Tokenizer:
    def __init__(self, template):
        self.chat_template = template

    def encode(self, text):
        return text

    def apply_chat_template(self, messages, tokenize, tools, return_dict, **kwargs):
        return chat_template_utils.render_jinja_template([messages], tools=tools, chat_template=self.chat_template, **kwargs)[0][0]


def engine(template, encoding, defaults):
    chat = serving.OpenAIServingChat.__new__(serving.OpenAIServingChat)
    chat.template_manager = types.SimpleNamespace(
        chat_template_name=None,
        jinja_template_content_format=templates.detect_jinja_template_content_format(template),
        jinja_template_may_reorder_tool_results=templates.jinja_template_may_reorder_tool_results(template),
        reasoning_config=None,
        python_chat_template=None,
    )
    model = types.SimpleNamespace(is_multimodal=True)
    chat.tokenizer_manager = types.SimpleNamespace(tokenizer=Tokenizer(template), model_config=model)
    chat.default_chat_template_kwargs = defaults
    chat.tool_call_parser = chat.reasoning_parser = chat._reasoning_detector = None
    chat.is_gpt_oss = chat.is_gemma4 = chat.is_minimax_m3 = False
    chat.chat_encoding_spec, chat._encoding_adapter = encoding, None
    chat._tokenizer_auto_adds_specials, chat._prompt_text_round_trip_is_lossy = True, False
    chat._patch_reasoning_skip_special_tokens = lambda request: None
    chat._get_reasoning_from_request = lambda request: False
    chat._takes_turn_grammar = lambda request, **kwargs: False
    chat._requires_response_template_detokenization = lambda request: False
    return chat


def answer(q):
    request = protocol.ChatCompletionRequest.model_validate(q["body"])
    chat = engine(q["template"], q["encoding"], q["defaults"])
    refused = chat._validate_request(request)
    if refused:
        raise ValueError(refused)
    made = {}
    serving.MessageProcessingResult = lambda **fields: types.SimpleNamespace(**fields)
    result = chat._process_messages(request, False)
    return {"text": result.prompt_ids}


for line in sys.stdin:
    try:
        out = json.dumps(answer(json.loads(line)))
    except Exception as why:  # whatever it is, the engine would refuse the request
        out = json.dumps({"error": (type(why).__name__ + ": " + str(why))[:400]})
    print(out, flush=True)
