from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core.block_hashes import BlockHasher
from stoker.engine.core.request import NO_SLOT, Request

HASHER = BlockHasher("sha256")


def request_of(reads_cache: bool = True, **sampling: object) -> Request:
    record = EngineRequest(
        request_id="a",
        inputs=RequestInputs([5, 6, 7], SamplingParams(**sampling)),  # type: ignore[arg-type]
        priority=3,
    )
    return Request.of(record, arrival=4, seed=99, eos_token_ids=(2,), max_length=50, reads_cache=reads_cache)


def test_a_new_request_waits_with_its_prompt():
    request = request_of(max_tokens=10)
    assert request.slot == NO_SLOT
    assert (request.token_ids, request.num_prompt_tokens) == ([5, 6, 7], 3)
    assert (request.arrival, request.priority, request.stop.max_length) == (4, 3, 13)


def test_the_request_s_own_seed_is_used_even_if_it_is_zero():
    assert request_of(seed=0).seed == 0
    assert request_of().seed == 99


def test_prompt_logprobs_need_every_position_computed():
    assert request_of(prompt_logprobs=0).reads_cache is False
    assert request_of(prompt_logprobs=0).prompt_logprobs == [None, None, None]
    assert request_of().reads_cache is True
    assert request_of(reads_cache=False).reads_cache is False


def test_block_hashes_are_computed_as_tokens_arrive():
    request = request_of()
    request.hash_blocks(HASHER, 2, 1)
    first = list(request.block_hashes)
    request.token_ids.append(8)
    request.hash_blocks(HASHER, 2, 2)
    assert request.block_hashes[:1] == first
    assert len(request.block_hashes) == 2
