"""Decoding in two parts, with vLLM's own classes and a flash attention written out in torch.

The kernels themselves need a GPU: tests/rl/test_gpu.py.
"""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")
from vllm.v1.attention.backends import flash_attn

from arcnb.errors import ArcnbError
from arcnb.rl.engine import group_attention as ga

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


def decoding(*prompts: tuple[int, list[int]], alike: int = 0, padding: int = 0, seed: int = 0):
    """What vLLM tells a builder: sequences of such lengths of each prompt, whose first tokens, so many, lie
    in the same blocks; the first `alike` tokens are those of all prompts. Behind a sequence, its row of the
    table is stale."""
    draw = torch.Generator().manual_seed(seed)
    free = iter((1 + torch.randperm(N_CACHE - 1, generator=draw)).tolist())
    stale = [next(free) for _ in range(3)]
    everyone = [next(free) for _ in range(alike // BLOCK)]
    rows, lens = [], []
    for common, of_prompt in prompts:
        shared = everyone + [next(free) for _ in range(common // BLOCK - len(everyone))]
        for length in of_prompt:
            own = [next(free) for _ in range(-(-length // BLOCK) - len(shared))]
            rows.append(shared + own + stale)
            lens.append(length)
    n = len(rows) + padding
    table = torch.zeros(n, BLOCKS + 3, dtype=torch.int32)  # wider than any sequence
    for row, blocks in enumerate(rows):
        table[row, : len(blocks)] = torch.tensor(blocks)
    return SimpleNamespace(
        num_actual_tokens=n,
        max_query_len=1,
        query_start_loc=torch.arange(n + 1, dtype=torch.int32),
        seq_lens=torch.tensor(lens + [0] * padding, dtype=torch.int32),
        block_table_tensor=table,
    )


def runs(split) -> list[tuple[int, int]]:
    """(sequences, tokens shared) of each run."""
    n = (split.query_lens[1:] - split.query_lens[:-1]).tolist()
    return [(size, shared) for size, shared in zip(n, split.prefix_lens.tolist(), strict=True) if size]


def outputs(impl, metadata, seed=1, together=False):
    """Of the attention in two parts, and of ordinary attention. together: keys and values of a token lie
    behind each other."""
    draw = torch.Generator().manual_seed(seed)
    cache = torch.randn(N_CACHE, 2, BLOCK, KV_HEADS, WIDTH, generator=draw)
    given = torch.cat(cache.unbind(1), dim=-1).transpose(1, 2).contiguous() if together else cache
    query = torch.randn(metadata.num_actual_tokens, HEADS, WIDTH, generator=draw)
    ours = impl.forward(None, query, None, None, given, metadata, torch.zeros_like(query))
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


@pytest.mark.parametrize("together", [False, True], ids=["vllm 0.23", "vllm 0.26"])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("common", [256, 400])
def test_a_common_prompt_read_once_gives_ordinary_attention(parts, common, padding, together):
    builder, impl = parts
    step = decoding((common, [common + 1, common + 16, common + 17, common + 300]), padding=padding)
    metadata = builder.build(0, step)
    assert runs(metadata.split) == [(4, common)] + [(1, 0)] * padding
    assert metadata.split.suffix_lens.tolist() == [1, 16, 17, 300] + [0] * padding
    ours, plain = outputs(impl, metadata, together=together)
    assert torch.allclose(ours[:4], plain[:4], atol=1e-5)


def test_each_prompt_of_several_is_read_once(parts, monkeypatch):
    builder, impl = parts
    read = []

    def counted(*positional, **named):
        read.append(int(named["seqused_k"].sum()))
        return paged(*positional, **named)

    step = decoding((512, [520, 530, 540]), (400, [410]), (640, [650, 660, 670]), alike=64, padding=1)
    metadata = builder.build(0, step)
    assert runs(metadata.split) == [(3, 512), (1, 0), (3, 640), (1, 0)]
    monkeypatch.setattr(flash_attn, "flash_attn_varlen_func", counted)
    ours, plain = outputs(impl, metadata)
    assert torch.allclose(ours[:7], plain[:7], atol=1e-5)
    assert read[:2] == [512 + 640, 8 + 18 + 28 + 410 + 10 + 20 + 30]


def test_prompts_that_only_begin_alike_are_runs_of_their_own(parts):
    """All prompts begin with the same instructions; a run over those alone would read the rest many times."""
    builder, impl = parts
    metadata = builder.build(0, decoding((800, [820, 830]), (720, [740, 750]), (416, [420, 430]), alike=304))
    assert runs(metadata.split) == [(2, 800), (2, 720), (2, 416)]
    ours, plain = outputs(impl, metadata)
    assert torch.allclose(ours, plain, atol=1e-5)


def test_a_sequence_out_of_place_costs_another_reading_and_nothing_else(parts):
    """As vLLM moves the last sequence into the place of one that has ended."""
    builder, impl = parts
    step = decoding((512, [520, 530, 540]), (384, [390, 400, 410]))
    order = torch.tensor([0, 5, 2, 3, 4, 1])
    step.seq_lens, step.block_table_tensor = step.seq_lens[order], step.block_table_tensor[order]
    metadata = builder.build(0, step)
    assert runs(metadata.split) == [(1, 0), (1, 0), (1, 0), (2, 384), (1, 0)]
    ours, plain = outputs(impl, metadata)
    assert torch.allclose(ours, plain, atol=1e-5)


def test_steps_follow_each_other_in_the_same_buffers(parts):
    """As a captured graph needs it; nothing of an earlier, longer step is left in the result."""
    builder, impl = parts
    seen = set()
    for number, prompts in enumerate(
        [[(640, [900, 800, 700])], [(272, [300, 290]), (256, [280])], [(0, [40, 30, 20])], [(512, [600])]]
    ):
        metadata = builder.build(0, decoding(*prompts, seed=number))
        split = metadata.split
        seen.add(
            tuple(
                getattr(split, name).data_ptr()
                for name in ("query_lens", "prefix_lens", "prefix_blocks", "suffix_lens", "suffix_blocks")
            )
        )
        ours, plain = outputs(impl, metadata, seed=number)
        assert torch.allclose(ours, plain, atol=1e-5)
    assert len(seen) == 1


@pytest.mark.parametrize("prompts", [[(240, [260, 270])], [(512, [600])], [(512, [600]), (512, [610])]])
def test_some_steps_are_not_worth_it(parts, prompts):
    builder, impl = parts
    metadata = builder.build(0, decoding(*prompts))
    assert not metadata.split.prefix_lens.any()
    ours, plain = outputs(impl, metadata)
    assert torch.allclose(ours, plain, atol=1e-5)


def test_blocks_behind_a_sequence_are_not_taken_for_shared_ones(parts):
    """A table that was longer once: equal rows, of which only what is in use counts."""
    builder, impl = parts
    step = decoding((512, [512 + BLOCK, 512 + BLOCK]))
    step.block_table_tensor[1] = step.block_table_tensor[0]
    step.seq_lens = torch.tensor([500, 300], dtype=torch.int32)
    metadata = builder.build(0, step)
    assert runs(metadata.split) == [(2, 288)]
    ours, plain = outputs(impl, metadata)
    assert torch.allclose(ours, plain, atol=1e-5)


def test_reading_a_prompt_goes_the_ordinary_way(parts):
    builder, _ = parts
    step = decoding((512, [600, 610]))
    step.max_query_len = 88
    assert builder.build(0, step).split is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"sliding_window": 512}, "a sliding window"), ({"alibi_slopes": [1.0] * 4}, "ALiBi")],
)
def test_a_model_that_it_does_not_fit_is_refused(changed, named, monkeypatch):
    def plain(self, **given):
        self.sliding_window = (
            (-1, -1) if given["sliding_window"] is None else (given["sliding_window"] - 1, 0)
        )
        self.alibi_slopes, self.sinks = given["alibi_slopes"], None

    monkeypatch.setattr(flash_attn.FlashAttentionImpl, "__init__", plain)
    fitting = {"sliding_window": None, "alibi_slopes": None}
    ga.GroupAttentionImpl(**fitting)
    with pytest.raises(ArcnbError, match=f"does not go with {named}"):
        ga.GroupAttentionImpl(**fitting | changed)


def test_vllm_knows_it_as_its_flash_attention_meanwhile(monkeypatch):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from arcnb.rl.engine.options import RUNNER, group_attention

    monkeypatch.setenv(RUNNER, "0")
    plain = AttentionBackendEnum.FLASH_ATTN.get_class()
    with group_attention():
        assert AttentionBackendEnum.FLASH_ATTN.get_class() is ga.GroupAttentionBackend
        assert ga.GroupAttentionBackend.get_name() == plain.get_name()
    assert AttentionBackendEnum.FLASH_ATTN.get_class() is plain
