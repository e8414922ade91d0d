"""What the model writes to each client, an answer each; the last one then always."""

HELLO, RAIN = "Hello there.", "It rains."
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
FINAL = '<tool_call>{"name": "final_answer", "arguments": {"answer": "rain"}}</tool_call>'
BLOCK = "a.py\n```python\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n```\n"
WHOLE = "a.py\n```python\nx = 3\n```\n"
SAYS: dict[str, tuple[str, ...]] = {
    "with_agents": (CALL, RAIN, CALL, RAIN, CALL, RAIN),
    "with_aider": (BLOCK, WHOLE),
    "with_dspy": (
        "[[ ## answer ## ]]\nrain\n\n[[ ## completed ## ]]",
        '{"answer": "rain"}',
        '{"next_thought": "look", "next_tool_name": "weather", "next_tool_args": {"city": "Oslo"}}',
        '{"next_thought": "done", "next_tool_name": "finish", "next_tool_args": {}}',
        '{"reasoning": "it said so", "answer": "rain"}',
    ),
    "with_haystack": (CALL, RAIN, RAIN),
    "with_langchain": (CALL, RAIN) * 3,
    "with_litellm": (
        HELLO,
        CALL,
        "It rains in Oslo.",
    ),
    "with_llama_index": (HELLO, HELLO, HELLO, CALL, RAIN),
    "with_llm": (HELLO, CALL, RAIN),
    "with_pydantic_ai": (CALL, RAIN, CALL, RAIN, CALL, RAIN),
    "with_semantic_kernel": (
        '<tool_call>{"name": "sky-weather", "arguments": {"city": "Oslo"}}</tool_call>',
        RAIN,
        RAIN,
    ),
    "with_smolagents": (
        CALL,
        FINAL,
        'Thought: I look.\n<code>\nfinal_answer(weather("Oslo"))\n</code>',
    ),
}
