"""Debugging aids that the human-written programs call under `if __name__ == "__main__"`."""

import copy

# Terminal colors (ANSI 256) of 0 to 9.
_ANSI = (16, 27, 196, 40, 226, 245, 201, 208, 51, 88)


def visualize(input_generator, transform, n_examples=5, n_attempts=100):
    """Make inputs, run the transformation on copies, print the pairs and how many attempts failed."""
    shown = failed = 0
    for _ in range(n_attempts):
        if shown >= n_examples:
            break
        try:
            grid = input_generator()
            output = transform(copy.deepcopy(grid))
        except Exception as error:
            failed += 1
            print(f"attempt failed: {type(error).__name__}: {error}")
            continue
        shown += 1
        print("input")
        show_colored_grid(grid)
        print("output")
        show_colored_grid(output)
    print(f"{shown} examples, {failed} failed attempts")


def show_colored_grid(grid, text=True):
    """Print the grid in terminal colors, y as lines; `text=False` plots it where matplotlib is there."""
    if not text:
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            pass
        else:
            plt.imshow(grid.T, vmin=0, vmax=9)
            plt.show()
            return
    for line in grid.T:
        print("".join(f"\033[48;5;{_ANSI[int(cell) % 10]}m  \033[0m" for cell in line))
