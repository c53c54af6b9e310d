"""vLLM's flash attention, with what running sequences share of their prompts read once a step.

vLLM imports this in the engine's process, see `arcnb.rl.engine.options.group_attention`; written for vLLM
0.23 on CUDA and its first model runner (its tests hold with 0.26, too). In every decoding step each of k
sequences of one prompt reads the prompt's keys and values anew. vLLM's own cascade attention reads once
what all running sequences share, but cannot be part of a CUDA graph, which costs what it gains.

Sequences that stand next to each other in a batch and begin with the same blocks of the cache are a run: a
GRPO group, mostly. Here the two parts of a decoding step are always there, and so can be captured:

* prefix: the queries of a run as one sequence, without a mask, over the blocks that the run shares;
* suffix: each sequence's query over what follows them, in a block table moved by as many blocks;

merged by their log-sum-exps. Which runs there are is found on the GPU, from the block table, and lies in
buffers of fixed place; a sequence that shares nothing is a run with an empty first part, ordinary attention.
Steps that read a prompt go the ordinary way. The result is ordinary attention's up to the order of sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from vllm.utils.math_utils import cdiv, round_up
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)
from vllm.v1.attention.ops.merge_attn_states import merge_attn_states

from arcnb.errors import ArcnbError

SHORTEST = 256  # shared tokens below which reading them once is not worth a part of its own (vLLM's bound)


@dataclass
class GroupAttentionMetadata(FlashAttentionMetadata):
    """Of a decoding step in two parts: `split` is None in every other step.

    `scheduler_metadata` then belongs to the second part.
    """

    split: "Split | None" = None


@dataclass
class Split:
    """Views of a builder's buffers, int32, for n sequences (those that fill up a CUDA graph included) in at
    most n runs; what has a row a run is empty behind the last one.

    query_lens: [n + 1], the first sequence of each run, then n. prefix_lens: [n] a run, tokens that it
    shares, a multiple of a block. prefix_blocks: [n, blocks] a run, its block table. suffix_lens: [n], tokens
    behind them. suffix_blocks: [n, blocks], the block table behind them. schedule: flash attention 3's for
    the first part (None: version 2). longest: bound of all lengths.
    """

    query_lens: torch.Tensor
    prefix_lens: torch.Tensor
    prefix_blocks: torch.Tensor
    suffix_lens: torch.Tensor
    suffix_blocks: torch.Tensor
    schedule: torch.Tensor | None
    longest: int


def shared_runs(table: torch.Tensor, lens: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(run, blocks): [n] the run of each sequence, counted from 0; [n] the blocks that each run shares.

    table: [n, blocks]; lens: [n], tokens; block: tokens a block. Neighbours are in one run if they share
    SHORTEST tokens at least, and not much less than the neighbours before or behind them do: prompts of
    different tasks begin alike, too, but not for long.
    """
    same = (table[1:] == table[:-1]).cumprod(1).sum(1)
    # The newest token is a sequence's own, and behind it the table is stale.
    whole = (lens - 1).clamp(min=0) // block
    same = torch.minimum(same, torch.minimum(whole[1:], whole[:-1]))
    same = torch.cat([same.new_zeros(1), same])  # with the sequence before
    beside = torch.nn.functional.pad(same, (1, 1))
    together = (same * block >= SHORTEST) & (4 * same >= 3 * torch.maximum(beside[:-2], beside[2:]))
    run = (~together).cumsum(0) - 1
    none = table.shape[1] + 1
    blocks = torch.full_like(same, none)
    blocks.scatter_reduce_(0, run, same.where(together, blocks), "amin")
    return run, blocks.where(blocks < none, 0)


class GroupAttentionBuilder(FlashAttentionMetadataBuilder):
    """Metadata of a step."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    supports_update_block_table = False

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.longest = vllm_config.model_config.max_model_len
        rows = max(vllm_config.scheduler_config.max_num_seqs, self.max_cudagraph_size or 0)
        blocks = cdiv(self.longest, self.block_size)

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.query_lens, self.prefix_lens, self.suffix_lens = zeros(rows + 1), zeros(rows), zeros(rows)
        self.prefix_blocks, self.suffix_blocks = zeros(rows, blocks), zeros(rows, blocks)
        # As many numbers as flash attention 3 needs, see the buffer of the class above.
        self.prefix_schedule = zeros(1 + round_up(rows, 4) * 4)
        self.numbers = torch.arange(max(rows, blocks), dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> GroupAttentionMetadata:
        """Metadata of a step; in two parts if every sequence decodes a single token."""
        decoding = common_attn_metadata.max_query_len == 1
        # Decoding steps have schedules of their own.
        whole = super().build(common_prefix_len, common_attn_metadata, fast_build or decoding)
        metadata = GroupAttentionMetadata(**vars(whole))
        if decoding:
            metadata.split = self._split(metadata)
            metadata.scheduler_metadata = self._suffix_schedule(metadata)
        return metadata

    def _split(self, metadata: FlashAttentionMetadata) -> Split:
        table = metadata.block_table[:, : self.suffix_blocks.shape[1]]  # vLLM's may be wider
        n, width = table.shape
        run, blocks = shared_runs(table, metadata.seq_lens, self.block_size)
        query_lens, prefix_lens = self.query_lens[: n + 1], self.prefix_lens[:n]
        query_lens.fill_(n)
        query_lens[:n].scatter_reduce_(0, run, self.numbers[:n], "amin")
        prefix_lens.copy_(blocks * self.block_size)
        self.prefix_blocks[:n, :width] = table[query_lens[:n].clamp(max=n - 1)]
        own = blocks[run]  # of each sequence: blocks in its first part
        self.suffix_lens[:n] = (metadata.seq_lens - own * self.block_size).clamp(min=0)
        columns = (self.numbers[:width] + own[:, None]).clamp(max=width - 1)
        self.suffix_blocks[:n, :width] = table.gather(1, columns)
        schedule = self._schedule(n, query_lens, n, prefix_lens, metadata.max_num_splits, False)
        if schedule is not None:
            schedule = _kept(self.prefix_schedule, schedule)
        return Split(
            query_lens,
            prefix_lens,
            self.prefix_blocks[:n],
            self.suffix_lens[:n],
            self.suffix_blocks[:n],
            schedule,
            self.longest,
        )

    def _suffix_schedule(self, metadata: GroupAttentionMetadata) -> torch.Tensor | None:
        lens = metadata.split.suffix_lens
        schedule = self._schedule(
            len(lens), metadata.query_start_loc, 1, lens, metadata.max_num_splits, metadata.causal
        )
        if schedule is not None and self.use_full_cuda_graph:
            return _kept(self.scheduler_metadata, schedule)
        return schedule

    def _schedule(self, n: int, query_lens, longest_query: int, lens, splits: int, causal: bool):
        """Flash attention 3's division of the work, for `n` sequences of `lens` tokens."""
        if not self.aot_schedule:
            return None
        return flash_attn.get_scheduler_metadata(
            batch_size=n,
            max_seqlen_q=longest_query,
            max_seqlen_k=self.longest,
            num_heads_q=self.num_heads_q,
            num_heads_kv=self.num_heads_kv,
            headdim=self.headdim,
            cache_seqlens=lens,
            qkv_dtype=self.kv_cache_dtype,
            cu_seqlens_q=query_lens,
            page_size=self.block_size,
            causal=causal,
            window_size=self.aot_sliding_window,
            num_splits=splits,
        )


def _kept(buffer: torch.Tensor, schedule: torch.Tensor) -> torch.Tensor:
    """The schedule in a buffer that a CUDA graph has seen; the rest of an older one would start blocks."""
    n = schedule.shape[0]
    buffer[:n] = schedule
    buffer[n:] = 0
    return buffer[:n]


def keys_and_values(cache: torch.Tensor) -> Sequence[torch.Tensor]:
    """Keys and values, each [blocks, tokens a block, heads, width], of a layer's cache.

    vLLM 0.23 has a dimension for the two, 0.26 has them behind each other in the last one.
    """
    if cache.dim() == 5:
        return cache.unbind(1)
    return cache.transpose(1, 2).chunk(2, dim=-1)


class GroupAttentionImpl(FlashAttentionImpl):
    """Attention of a layer: in two parts where the step's metadata say so, else vLLM's own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for unfit, holds in {
            "a sliding window": self.sliding_window != (-1, -1),
            "ALiBi": self.alibi_slopes is not None,
            "attention sinks": self.sinks is not None,
        }.items():
            if holds:
                raise ArcnbError(f"vllm_group_attention=True does not go with {unfit}, which this model has")

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, *scales, **named):
        """Shapes and arguments as vLLM's own; `output` is filled and returned."""
        split = getattr(attn_metadata, "split", None)
        quantized = [scale for scale in (*scales, *named.values()) if scale is not None]
        if split is None or quantized:
            return super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, *scales, **named
            )
        n = attn_metadata.num_actual_tokens
        cache = [flash_attn.canonicalize_singleton_dim_strides(part) for part in keys_and_values(kv_cache)]
        prefix, prefix_lse = self._part(
            query[:n],
            cache,
            attn_metadata.max_num_splits,
            cu_seqlens_q=split.query_lens,
            max_seqlen_q=n,
            seqused_k=split.prefix_lens,
            max_seqlen_k=split.longest,
            causal=False,
            block_table=split.prefix_blocks,
            scheduler_metadata=split.schedule,
        )
        suffix, suffix_lse = self._part(
            query[:n],
            cache,
            attn_metadata.max_num_splits,
            cu_seqlens_q=attn_metadata.query_start_loc,
            max_seqlen_q=1,
            seqused_k=split.suffix_lens,
            max_seqlen_k=split.longest,
            causal=attn_metadata.causal,
            block_table=split.suffix_blocks,
            scheduler_metadata=attn_metadata.scheduler_metadata,
        )
        merge_attn_states(output[:n], prefix, prefix_lse, suffix, suffix_lse)
        return output

    def _part(self, query, cache, n_splits, **part):
        """Output [n, heads, width] and log-sum-exps [heads, n] of flash attention over some of the tokens."""
        return flash_attn.flash_attn_varlen_func(
            q=query,
            k=cache[0],
            v=cache[1],
            softmax_scale=self.scale,
            window_size=list(self.sliding_window),
            softcap=self.logits_soft_cap,
            return_softmax_lse=True,
            fa_version=self.vllm_flash_attn_version,
            num_splits=n_splits,
            **part,
        )


class GroupAttentionBackend(FlashAttentionBackend):
    """Takes the place of vLLM's flash attention and keeps its name and its cache."""

    @staticmethod
    def get_impl_cls() -> type[GroupAttentionImpl]:
        return GroupAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[GroupAttentionBuilder]:
        return GroupAttentionBuilder
