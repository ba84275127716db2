from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core.policy import RANKS, PolicyName, WaitingQueue
from stoker.engine.core.request import Request


def request(arrival: int, priority: int = 0, num_tokens: int = 1) -> Request:
    record = EngineRequest(
        request_id=str(arrival), inputs=RequestInputs([1] * num_tokens, SamplingParams()), priority=priority
    )
    return Request.of(
        record,
        arrival=arrival,
        seed=0,
        eos_token_ids=(),
        max_length=100,
        reads_cache=True,
    )


def order(policy: PolicyName, *requests: Request) -> list[str]:
    queue = WaitingQueue(RANKS[policy])
    for each in requests:
        queue.push(each)
    return [queue.pop().request_id for _ in requests]


def test_fcfs_serves_in_the_order_of_arrival():
    assert order("fcfs", request(1, priority=5), request(2, priority=0), request(0)) == ["0", "1", "2"]


def test_priority_serves_lower_numbers_first_and_equals_in_the_order_of_arrival():
    assert order("priority", request(0, 5), request(1, -1), request(3, 0), request(2, 0)) == ["1", "2", "3", "0"]


def test_the_queue_counts_prompt_tokens():
    queue = WaitingQueue(RANKS["fcfs"])
    first, second = request(0, num_tokens=7), request(1, num_tokens=100)
    queue.push(second)
    queue.push(first)
    assert (len(queue), queue.num_tokens) == (2, 107)
    assert queue.peek() is first
    queue.remove(second)
    assert (len(queue), queue.num_tokens) == (1, 7)
    assert queue.pop() is first
    assert (len(queue), queue.num_tokens) == (0, 0)
