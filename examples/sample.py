import tinker
from tinker import types

# Both clients read TINKER_BASE_URL and TINKER_API_KEY.
models = tinker.RestClient().get_server_capabilities().result().supported_models
service = tinker.ServiceClient()
sampler = service.create_sampling_client(base_model=models[0].model_name).result()

prompt = types.ModelInput.from_ints([101, 2023, 2003, 1037, 3231])
params = types.SamplingParams(max_tokens=16, temperature=0.7, seed=7)
result = sampler.sample(prompt, num_samples=2, sampling_params=params).result()
for sequence in result.sequences:
    print(sequence.stop_reason, sequence.tokens, sequence.logprobs)
print(sampler.compute_logprobs(prompt).result())
