"""Decoding in two parts, with vLLM's own classes and a flash attention written out in torch.

The kernels themselves need a GPU: tests/rl/test_rl_gpu.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")
from vllm.v1.attention.backends import flash_attn

from arcnb.rl.vllm_parts import group_attention as ga

HEADS, KV_HEADS, WIDTH, BLOCK, LONGEST = 4, 2, 8, 16, 1024
BLOCKS = LONGEST // BLOCK
N_CACHE = 200


def paged(q, k, v, cu_seqlens_q, seqused_k, block_table, softmax_scale, causal, **rest):
    """Flash attention's varlen function over a paged cache: (output, log-sum-exps [heads, tokens])."""
    assert rest["return_softmax_lse"]
    out, lse = torch.zeros_like(q), torch.full((q.shape[1], len(q)), -torch.inf)
    for row, length in enumerate(seqused_k.tolist()):
        first, last = cu_seqlens_q[row : row + 2].tolist()
        assert last - first <= rest["max_seqlen_q"]
        if not length:
            continue
        places = block_table[row, : -(-length // BLOCK)].long()
        keys = k[places].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, 1)
        values = v[places].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("qhd,khd->hqk", q[first:last], keys) * softmax_scale
        if causal:  # the last query sees everything
            n = last - first
            hidden = torch.arange(length)[None] > torch.arange(length - n, length)[:, None]
            scores = scores.masked_fill(hidden, -torch.inf)
        lse[:, first:last] = scores.logsumexp(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out, lse


def merge(output, prefix, prefix_lse, suffix, suffix_lse):
    weights = torch.stack([prefix_lse, suffix_lse]).softmax(0)[..., None].transpose(1, 2)
    output.copy_(weights[0] * prefix + weights[1] * suffix)


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.setattr(flash_attn, "flash_attn_varlen_func", paged, raising=False)
    monkeypatch.setattr(ga, "merge_attn_states", merge)
    monkeypatch.setattr(flash_attn.FlashAttentionMetadataBuilder, "__init__", lambda *_: None)
    monkeypatch.setattr(flash_attn.FlashAttentionMetadataBuilder, "build", whole)
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=LONGEST),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )
    builder = object.__new__(ga.GroupAttentionBuilder)
    builder.max_cudagraph_size, builder.block_size, builder.dcp_world_size = 8, BLOCK, 1
    builder.aot_schedule = builder.use_full_cuda_graph = False
    builder.__init__(None, [], config, torch.device("cpu"))
    impl = object.__new__(ga.GroupAttentionImpl)
    impl.scale, impl.sliding_window, impl.logits_soft_cap = WIDTH**-0.5, (-1, -1), 0.0
    impl.vllm_flash_attn_version = 2
    return builder, impl


def whole(self, common_prefix_len, step, fast_build=False):
    assert common_prefix_len == 0  # vLLM's own cascade stays off
    return flash_attn.FlashAttentionMetadata(
        num_actual_tokens=step.num_actual_tokens,
        max_query_len=step.max_query_len,
        query_start_loc=step.query_start_loc,
        max_seq_len=LONGEST,
        seq_lens=step.seq_lens,
        block_table=step.block_table_tensor,
        slot_mapping=torch.zeros(1),
        use_cascade=False,
        common_prefix_len=0,
        cu_prefix_query_lens=None,
        prefix_kv_lens=None,
        suffix_kv_lens=None,
    )


def decoding(lens: list[int], common: int, padding: int = 0, seed: int = 0):
    """(what vLLM tells a builder, a table of blocks of which the first `common` tokens' are everyone's)."""
    draw = torch.Generator().manual_seed(seed)
    places = 1 + torch.randperm(N_CACHE - 1, generator=draw).to(torch.int32)
    table = torch.zeros(len(lens) + padding, BLOCKS + 3, dtype=torch.int32)  # wider than any sequence
    shared, free = places[: common // BLOCK], iter(places[common // BLOCK :].tolist())
    for row, length in enumerate(lens):
        table[row, : len(shared)] = shared
        for column in range(len(shared), -(-length // BLOCK)):
            table[row, column] = next(free)
    n = len(table)
    return SimpleNamespace(
        num_actual_tokens=n,
        max_query_len=1,
        query_start_loc=torch.arange(n + 1, dtype=torch.int32),
        seq_lens=torch.tensor(lens + [0] * padding, dtype=torch.int32),
        block_table_tensor=table,
    )


def asked(builder, common: int, n: int, query_lens=None, **changed):
    """The model runner's question before a step."""
    lens = np.ones(n, dtype=np.int32) if query_lens is None else np.array(query_lens)
    settings = {"use_alibi": False, "use_sliding_window": False, "use_local_attention": False}
    settings |= {"num_query_heads": HEADS, "num_kv_heads": KV_HEADS, "num_sms": 1, "dcp_world_size": 1}
    return builder.use_cascade_attention(common_prefix_len=common, query_lens=lens, **settings | changed)


def outputs(impl, metadata, seed=1):
    """Of the attention in two parts, and of ordinary attention."""
    draw = torch.Generator().manual_seed(seed)
    cache = torch.randn(N_CACHE, 2, BLOCK, KV_HEADS, WIDTH, generator=draw)
    query = torch.randn(metadata.num_actual_tokens, HEADS, WIDTH, generator=draw)
    ours = impl.forward(None, query, None, None, cache, metadata, torch.zeros_like(query))
    plain, _ = paged(
        query,
        *cache.unbind(1),
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.block_table,
        impl.scale,
        True,
        return_softmax_lse=True,
        max_seqlen_q=1,
    )
    return ours, plain


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("common", [256, 400])
def test_a_common_prompt_read_once_gives_ordinary_attention(parts, common, padding):
    builder, impl = parts
    step = decoding([common + 1, common + 16, common + 17, common + 300], common, padding)
    assert asked(builder, common, 4) is False
    metadata = builder.build(0, step)
    assert metadata.split.prefix_len.item() == common
    assert metadata.split.suffix_lens.tolist() == [1, 16, 17, 300] + [0] * padding
    ours, plain = outputs(impl, metadata)
    assert torch.allclose(ours[:4], plain[:4], atol=1e-5)


def test_the_first_part_is_read_once_for_all(parts, monkeypatch):
    builder, impl = parts
    read = []

    def counted(*positional, **named):
        read.append(int(named["seqused_k"].sum()))
        return paged(*positional, **named)

    monkeypatch.setattr(flash_attn, "flash_attn_varlen_func", counted)
    asked(builder, 512, 4)
    outputs(impl, builder.build(0, decoding([520, 530, 540, 550], 512)))
    assert read == [512, 8 + 18 + 28 + 38]


def test_what_was_common_holds_for_one_step(parts):
    """The runner asks nothing where not even one block is common, or for a trial run."""
    builder, impl = parts
    step = decoding([300, 301], 256)
    asked(builder, 256, 2)
    builder.build(0, step)
    metadata = builder.build(0, step)
    assert metadata.split.prefix_len.item() == 0
    ours, plain = outputs(impl, metadata)
    assert torch.allclose(ours, plain, atol=1e-5)


def test_steps_follow_each_other_in_the_same_buffers(parts):
    """As a captured graph needs it; nothing of an earlier, longer step is left in the result."""
    builder, impl = parts
    seen = set()
    for number, (lens, common) in enumerate(
        [([900, 800, 700], 640), ([300, 290, 280], 272), ([40, 30, 20], 0)]
    ):
        asked(builder, common, 3)
        metadata = builder.build(0, decoding(lens, common, seed=number))
        split = metadata.split
        buffers = (split.query_lens, split.prefix_len, split.suffix_lens, split.suffix_blocks)
        seen.add(tuple(buffer.data_ptr() for buffer in buffers))
        ours, plain = outputs(impl, metadata, seed=number)
        assert torch.allclose(ours, plain, atol=1e-5)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "question",
    [
        {"common": 240},
        {"common": 512, "n": 1},
        {"common": 512, "query_lens": [1, 2]},
        {"common": 512, "use_sliding_window": True},
        {"common": 512, "use_alibi": True},
        {"common": 512, "dcp_world_size": 2},
    ],
)
def test_some_steps_are_not_worth_it_or_not_possible(parts, question):
    builder, _ = parts
    assert asked(builder, **{"n": 2} | question) is False
    assert builder.build(0, decoding([600, 610], 512)).split.prefix_len.item() == 0


def test_reading_a_prompt_goes_the_ordinary_way(parts):
    builder, _ = parts
    step = decoding([600, 610], 512)
    step.max_query_len = 88
    asked(builder, 512, 2, query_lens=[88, 1])
    assert builder.build(0, step).split is None


def test_vllm_knows_it_as_its_flash_attention_meanwhile(monkeypatch):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from arcnb.rl.sampler_engine import RUNNER, group_attention

    monkeypatch.setenv(RUNNER, "0")
    plain = AttentionBackendEnum.FLASH_ATTN.get_class()
    with group_attention():
        assert AttentionBackendEnum.FLASH_ATTN.get_class() is ga.GroupAttentionBackend
        assert ga.GroupAttentionBackend.get_name() == plain.get_name()
    assert AttentionBackendEnum.FLASH_ATTN.get_class() is plain
