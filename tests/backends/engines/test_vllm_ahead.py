"""What holds for vLLM a step at a time holds where it begins steps ahead, as on a GPU; and it does begin them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("vllm")

from rlgraph.backends.engines.base import Admission, Sampling
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from tests.backends.engines.ahead import Device, stepping_ahead
from tests.backends.engines.models import PAIRS
from tests.backends.engines.refreshing import Coming, check
from tests.backends.engines.test_vllm import (  # noqa: F401
    LONG,
    PROMPTS,
    Pair,
    keys,
    pair,
    test_a_call_that_diverges_leaves_others_alone,
    test_a_model_that_sleeps_wakes_up_as_it_was,
    test_a_row_does_not_depend_on_its_batch,
    test_a_row_ends_at_its_first_end_token_and_keeps_it,
    test_a_stream_gives_each_row_as_it_ends,
    test_adapters_beside_the_weights,
    test_calls_of_one_request_are_sampled_beside_each_other,
    test_calls_of_several_turns_go_on_beside_others,
    test_calls_that_another_thread_samples_for,
    test_diverged_weights_are_reported,
    test_new_weights_come_between_two_calls_that_are_sampled_together,
    test_new_weights_count_from_the_next_token_on,
    test_prompts_that_are_read_in_parts,
    test_rows_go_on_with_the_keys_and_values_of_older_weights,
    test_rows_of_several_calls_are_sampled_together,
    test_rows_that_wait_and_rows_that_are_computed_again,
    test_samples_that_do_not_end_first_are_given_up,
    test_the_tokens_are_those_of_transformers,
    test_the_tokens_that_vllm_samples_from_are_those_of_transformers,
    test_weights_that_change_in_mid_stream,
    test_who_comes_when_the_sampling_has_failed_does_not_wait,
    write,
)
from tests.backends.engines.vllm_models import spec


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[Device]:
    """What all engines of this module run on."""
    with stepping_ahead() as device:
        yield device


def test_the_host_is_a_step_ahead_of_the_device(pair: Pair, device: Device) -> None:  # noqa: F811
    """Until whoever gets a row may write weights: then the device has done all that it was given."""
    engine, _ = pair
    for sampling in (Sampling(12, min_tokens=12), Sampling(40, min_tokens=5, stop_texts=PAIRS)):
        before, ahead = device.begun, device.ahead
        rows = [(device.begun, len(sample.tokens)) for sample in engine.stream(PROMPTS, 4, sampling, keys(20))]
        steps = rows[-1][0] - before
        ends = len({begun for begun, _ in rows})
        # The first step has none before it, nor the first one behind each row.
        assert steps - ends <= device.ahead - ahead < steps and steps - ends >= 4
        assert all(device.begun == device.waited_for for _ in engine.stream(PROMPTS, 4, sampling, keys(20)))


def test_weights_come_when_the_device_has_done_all(pair: Pair, device: Device) -> None:  # noqa: F811
    """While rows are sampled as in a run, where another thread waits for them, and when a call has been sampled."""
    engine, trainer = pair
    own, models = engine.state(), {0: trainer, 1: TransformersEngine.open(spec(seed=5))}
    sampling, left = Sampling(150, min_tokens=8, stop_ids=tuple(range(20, 30))), list[int]()

    def take(version: int) -> None:
        left.append(device.begun - device.waited_for)
        write(engine, models[version])

    for after in range(1, 5):
        with ThreadPoolExecutor(1) as threads:
            coming, joining = Coming(take, after=(after,)), Admission(1, join_call=False)
            made = threads.submit(engine.generate, LONG, 6, sampling, keys(24), refresh=coming, admission=joining)
            ahead = device.ahead
            engine.sample_until_call_done(1)
            left.append(device.begun - device.waited_for)
            engine.dismiss_call(1)
            assert device.ahead - ahead > 10
        assert made.result().finished.all(), "no row ends where it has to: the step ahead is for none"
        check(made.result(), models, sampling, 1e-5)
        engine.load_weights(own)
    assert left == [0] * 8
