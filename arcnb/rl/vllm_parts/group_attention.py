"""vLLM's flash attention, with the prompt that all running sequences share read once a step.

vLLM imports this in the engine's process, see `arcnb.rl.sampler_engine.group_attention`; written for vLLM
0.23 on CUDA and its first model runner. In every decoding step each of n sequences of one prompt reads the
prompt's keys and values anew: at 3,800 tokens and n = 32 as many bytes as the weights of an 8B model. vLLM's
own cascade attention reads them once, but cannot be part of a CUDA graph, which costs what it gains.

Here the two parts of a decoding step are always there, and so can be captured:

* prefix: the queries of all sequences as one sequence, without a mask, over the blocks that all share;
* suffix: each sequence's query over what follows them, in a block table moved by as many blocks;

merged by their log-sum-exps. What changes from step to step (common length, lengths behind it, block table)
lies in buffers of fixed place; a common length of 0 is ordinary attention, with an empty first part. Steps
that read a prompt go the ordinary way. The result is ordinary attention's up to the order of sums.
"""

from dataclasses import dataclass

import numpy as np
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

SHORTEST = 256  # common tokens below which reading them once is not worth a part of its own (vLLM's bound)


@dataclass
class GroupAttentionMetadata(FlashAttentionMetadata):
    """Of a decoding step in two parts: `split` is None in every other step.

    `scheduler_metadata` is then that of the second part.
    """

    split: "Split | None" = None


@dataclass
class Split:
    """Views of a builder's buffers, int32, for n sequences (those that fill up a CUDA graph included).

    query_lens: [2], 0 and n. prefix_len: [1], tokens that all sequences share, a multiple of a block.
    suffix_lens: [n], tokens behind them. suffix_blocks: [n, blocks], the block table behind them.
    schedule: flash attention 3's for the first part (None: version 2). longest: bound of all lengths.
    """

    query_lens: torch.Tensor
    prefix_len: torch.Tensor
    suffix_lens: torch.Tensor
    suffix_blocks: torch.Tensor
    schedule: torch.Tensor | None
    longest: int


class GroupAttentionBuilder(FlashAttentionMetadataBuilder):
    """Metadata of a step. The model runner says how much is common by asking `use_cascade_attention`."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    supports_update_block_table = False

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.longest = vllm_config.model_config.max_model_len
        rows = max(vllm_config.scheduler_config.max_num_seqs, self.max_cudagraph_size or 0)

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.query_lens, self.prefix_len, self.suffix_lens = zeros(2), zeros(1), zeros(rows)
        self.suffix_blocks = zeros(rows, cdiv(self.longest, self.block_size))
        # As many numbers as flash attention 3 needs for one sequence, see the buffer of the class above.
        self.prefix_schedule = zeros(1 + round_up(1, 4) * 4)
        self._common = 0

    def use_cascade_attention(
        self,
        common_prefix_len: int,
        query_lens: np.ndarray,
        num_query_heads: int,
        num_kv_heads: int,
        use_alibi: bool,
        use_sliding_window: bool,
        use_local_attention: bool,
        num_sms: int,
        dcp_world_size: int,
    ) -> bool:
        """Notes what the sequences of the coming step share. False: we do without vLLM's own cascade."""
        plain = use_alibi or use_sliding_window or use_local_attention or dcp_world_size > 1
        decoding = bool(np.all(query_lens == 1))
        worth = common_prefix_len >= SHORTEST and len(query_lens) > 1
        self._common = common_prefix_len if decoding and worth and not plain else 0
        return False

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> GroupAttentionMetadata:
        """Metadata of a step; in two parts if every sequence decodes a single token."""
        common, self._common = self._common, 0  # what was noted holds for one step
        whole = super().build(0, common_attn_metadata, fast_build)
        metadata = GroupAttentionMetadata(**vars(whole))
        if common_attn_metadata.max_query_len == 1 and self.dcp_world_size == 1:
            metadata.split = self._split(metadata, common)
            metadata.scheduler_metadata = self._suffix_schedule(metadata)
        return metadata

    def _split(self, metadata: FlashAttentionMetadata, common: int) -> Split:
        n, blocks = metadata.block_table.shape
        skipped = common // self.block_size
        kept = min(blocks - skipped, self.suffix_blocks.shape[1])  # vLLM's table may be wider
        self.query_lens[1:].fill_(n)
        self.prefix_len.fill_(common)
        lens = self.suffix_lens[:n]
        torch.sub(metadata.seq_lens, common, out=lens)
        lens.clamp_(min=0)  # rows that fill up a graph have no tokens at all
        self.suffix_blocks[:n, :kept].copy_(metadata.block_table[:, skipped : skipped + kept])
        schedule = self._schedule(1, self.query_lens, n, self.prefix_len, metadata.max_num_splits, False)
        if schedule is not None:
            schedule = _kept(self.prefix_schedule, schedule)
        return Split(self.query_lens, self.prefix_len, lens, self.suffix_blocks[:n], schedule, self.longest)

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


class GroupAttentionImpl(FlashAttentionImpl):
    """Attention of a layer: in two parts where the step's metadata say so, else vLLM's own."""

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, *scales, **named):
        """Shapes and arguments as vLLM's own; `output` is filled and returned."""
        split = getattr(attn_metadata, "split", None)
        quantized = [scale for scale in (*scales, *named.values()) if scale is not None]
        if split is None or quantized:
            return super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, *scales, **named
            )
        n = attn_metadata.num_actual_tokens
        cache = [flash_attn.canonicalize_singleton_dim_strides(part) for part in kv_cache.unbind(1)]
        prefix, prefix_lse = self._part(
            query[:n],
            cache,
            attn_metadata.max_num_splits,
            cu_seqlens_q=split.query_lens,
            max_seqlen_q=n,
            seqused_k=split.prefix_len,
            max_seqlen_k=split.longest,
            causal=False,
            block_table=attn_metadata.block_table[:1],
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
