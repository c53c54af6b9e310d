"""What speculative decoding with drafts from text would accept, on completions that are stored already.

    python bench/drafts.py runs/*/rollouts runs/*/predictions

No model is run. The completions of a task and round are decoded in step, as one batch of a sampler: in each
pass every unfinished one is given a draft of at most --draft tokens, what followed the last place where its
last tokens (8 down to 2) stood before, and goes on behind the first token that differs from what it really
was. Drafts come from its `own` tokens (vLLM's method "ngram", less the prompt, in which no program stands),
also from its `siblings` so far, or also from all completions of rounds and tasks `before` it (vLLM's method
"suffix" keeps both). Printed: tokens a pass of a completion, and passes of a whole batch beside one token a
pass. Rejection sampling with one-point drafts accepts what is counted here, in expectation.
"""

import argparse
from collections import defaultdict
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.models.registry import load_tokenizer, resolve_model

LONGEST, SHORTEST = 8, 2
SOURCES = ("own", "siblings", "before")


class Places:
    """Where the last tokens of a text stood, in all that was added."""

    def __init__(self):
        self.after: dict[tuple, tuple[list, int]] = {}

    def add(self, tokens: list, start: int) -> None:
        """The tokens from `start` on are there now."""
        for end in range(max(start, SHORTEST), len(tokens)):
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                self.after[tuple(tokens[end - n : end])] = tokens, end

    def draft(self, tokens: list, most: int) -> list:
        for n in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            found = self.after.get(tuple(tokens[-n:]))
            if found:
                text, end = found
                return text[end : end + most]
        return []


def passes_of(group: list[list[int]], source: str, before: Places, most: int) -> list[int]:
    """Passes that each completion of a group takes."""
    made = [[] for _ in group]
    common, own = Places(), [Places() for _ in group]
    counts = [0] * len(group)
    while any(len(now) < len(whole) for now, whole in zip(made, group, strict=True)):
        steps = []
        for i, (now, whole) in enumerate(zip(made, group, strict=True)):
            if len(now) == len(whole):
                continue
            draft = own[i].draft(now, most)
            if source != "own":
                draft = common.draft(now, most) or draft
            if source == "before":
                draft = draft or before.draft(now, most)
            right = 0
            while right < len(draft) and len(now) + right < len(whole) - 1:
                if draft[right] != whole[len(now) + right]:
                    break
                right += 1
            steps.append((i, len(now), right + 1))
        for i, start, n in steps:  # siblings see each other's tokens a pass later
            made[i] += group[i][start : start + n]
            counts[i] += 1
            own[i].add(made[i], start)
            common.add(made[i], start)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="folders of prediction sets")
    parser.add_argument("--model", default="default", help="whose tokenizer is taken")
    parser.add_argument("--draft", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--groups", type=int, default=200, help="at most so many of each set")
    args = parser.parse_args()
    tokenizer = load_tokenizer(resolve_model(args.model))
    for folder in args.sets:
        groups = defaultdict(list)
        for one in PredictionSet(folder).iter_predictions():
            groups[one.round, one.task_id].append(tokenizer(one.completion)["input_ids"])
        some = [group for _, group in sorted(groups.items()) if len(group) > 1 and any(group)]
        some = some[: args.groups]
        n_tokens = sum(len(ids) for group in some for ids in group)
        longest = sum(max(map(len, group)) for group in some)
        print(f"{folder}: {len(some)} groups, {sum(map(len, some))} completions, {n_tokens} tokens")
        for most in args.draft if some else ():
            for source in SOURCES:
                before, passes, of_batches = Places(), 0, 0
                for group in some:
                    counts = passes_of(group, source, before, most)
                    passes, of_batches = passes + sum(counts), of_batches + max(counts)
                    for ids in group if source == "before" else ():
                        before.add(ids, 0)
                print(
                    f"  drafts of {most} from {source}: {n_tokens / passes:.2f} tokens a pass, "
                    f"{of_batches / longest:.2f} of the passes of a batch"
                )


if __name__ == "__main__":
    main()
