"""Everything that faces vLLM or vllm-router."""
