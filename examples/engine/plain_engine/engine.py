"""No cache, no threads, row after row."""

import numpy as np
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from rlgraph.backends.engines.base import EngineError, Generation, NoRows
from rlgraph.backends.engines.micro_batches import plan_micro_batches
from rlgraph.backends.engines.optimizer import Optimizer
from rlgraph.backends.engines.sampling import sample
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import load
from rlgraph.backends.engines.weights import blend_weights, clone_tensors, overwrite_weights
from rlgraph.backends.enginespec.spec import replicated_layout
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.ir.mesh import make_mesh


def open_rank(model, rank):
    return PlainEngine(model)


class PlainEngine:
    has_results = True
    max_row_tokens = None

    def __init__(self, model):
        loaded = load(model)
        self.spec, self.codec, self.model = model, loaded.codec, loaded.model
        self._optimizer = Optimizer(dict(self.model.named_parameters()))

    # Weights

    def layout(self):
        return replicated_layout(shape_of(self.model.config.to_dict()), make_mesh(), 0, self.spec.kind)

    def tensors(self):
        return dict(self.model.named_parameters())

    def note_weights_written(self):
        self._optimizer.refresh_master_weights()

    def state(self):
        return clone_tensors(self.tensors())

    def load_weights(self, state):
        overwrite_weights(self.tensors(), state)

    def blend(self, other, ema):
        blend_weights(self.tensors(), other, ema)

    # Work

    def generate(self, prompts, n, sampling, row_keys, weights=None):
        starts = [row for row in prompts.rows() for _ in range(n)]
        made = [self._row(row, sampling, key, weights or {}) for row, key in zip(starts, row_keys, strict=True)]
        tokens, logprobs, ended = zip(*made, strict=True)
        flat = torch.tensor([each for row in logprobs for each in row])
        return Generation(Sequences.from_pairs(starts, tokens), flat, torch.tensor(ended))

    def _row(self, start, sampling, key, weights):
        tokens, logprobs = [], []
        ends = {self.codec.eos_id, *sampling.stop_ids} - {None}
        while len(tokens) < sampling.max_tokens and not ends & set(tokens[-1:]):
            logits = functional_call(self.model, weights, (torch.tensor([start + tokens]),)).logits[:, -1]
            banned = torch.tensor(sorted(ends)) if len(tokens) < sampling.min_tokens else None
            token, logprob = sample(logits, np.array([key]), len(tokens), sampling, banned)
            tokens.append(int(token))
            logprobs.append(float(logprob))
        return tokens, logprobs, bool(ends & set(tokens[-1:]))

    def logprobs(self, sequences, temperature=1.0):
        where = sequences.scored.nonzero()[:, 0]
        if not len(where):
            return torch.zeros(0)
        ids, _ = sequences.padded(self.codec.pad_id)
        logits = self.model(ids).logits[sequences.row_of_token[where], sequences.token_positions[where] - 1]
        return -cross_entropy(logits / (temperature or 1.0), sequences.tokens[where], reduction="none")

    def train_step(self, blocks, micro, options, step):
        self.model.zero_grad()
        total, has_rows = 0.0, False
        for block in blocks:
            with torch.enable_grad():
                part = micro(block)
                if any(call.op != "logprobs" for call in part.calls):
                    raise EngineError("the engine plain gives log-probabilities only")
                value = part.loss([self.logprobs(call.sequences, call.temperature) for call in part.calls])
                if value.requires_grad:
                    value.backward()
                total, has_rows = total + float(value.detach()), has_rows or part.has_rows
        if not has_rows:
            raise NoRows
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return {"loss": total, **self._optimizer.step(gradients, options, step)}

    def plan_micro_batches(self, lengths, token_budget=None):
        return plan_micro_batches(lengths, token_budget or 2048)
