"""A grouped matrix product in tiles whose operands are given as WGSL statements (implicit matrix products)."""

from __future__ import annotations

from ..kernels.pointwise import MAIN
from ..recipe import Words

DEPTH = 16  # terms of the sum that a tile holds at once
INVOCATIONS = 256
FEW_TILES = 96  # fewer large tiles than this leave a GPU idle: use small ones


def tile_grid(rows: int, columns: int, groups: int) -> tuple[int, int, int, int]:
    """(register block edge, row tiles, column tiles, all tiles) of a grouped matrix product."""
    for block in (4, 2):
        edge = 16 * block
        tiles = -(-rows // edge), -(-columns // edge)
        if tiles[0] * tiles[1] * groups >= FEW_TILES or block == 2:
            break
    return block, tiles[0], tiles[1], tiles[0] * tiles[1] * groups


def tiled(
    w: Words, block: int, head: str, loops: tuple[str, str], depth: str, left: str, right: str, store: list[str]
) -> str:
    """A grouped matrix product with operands staged in workgroup memory, four terms of the sum a vector.

    Args:
        block: each invocation holds ``block`` × ``block`` results; a tile has 16 times as many rows and columns.
        head: statements before the loops; they see ``grp``, ``tm``, ``tn`` (tile numbers) and ``col`` (loaded column).
        loops: what opens and closes loops around the one over ``depth``.
        left: statements that set ``v`` to the left operand at row ``m``, term ``k``; both are in range.
        right: as ``left`` for term ``k`` and column ``col``.
        store: for each row of the block, statements that use result ``c<i><j>`` at row ``row + i`` and column
            ``column + offset(j)``.
    """
    edge, quads, cells = 16 * block, DEPTH // 4, range(block)

    def load(quad: str, inside: str, statements: str) -> str:
        return "".join(
            f"{{ let k = k0 + {quad} * 4u + {e}u; var v = 0.0;\n"
            f"if (k < {depth} && {inside}) {{ {statements} }}\nquad.{'xyzw'[e]} = v; }}\n"
            for e in range(4)
        )

    return (
        f"var<workgroup> lt_: array<vec4<f32>, {quads * edge}>;\n"
        f"var<workgroup> rt_: array<vec4<f32>, {quads * edge}>;\n"
        + MAIN.format(wg=INVOCATIONS)
        + f"let tile = g.y * n.x + g.x;\nif (tile >= {w.tiles}) {{ return; }}\n"
        f"let tn = tile % {w.tiles_n}; let tm = (tile / {w.tiles_n}) % {w.tiles_m};\n"
        f"let grp = tile / ({w.tiles_n} * {w.tiles_m}); let ty = l / 16u; let tx = l % 16u;\n"
        # Neighbouring invocations read neighbouring terms of the left operand and neighbouring columns of the right.
        f"let lq = l % {quads}u; let lm = l / {quads}u; let m = tm * {edge}u + lm;\n"
        f"let rq = l / {edge}u; let col = tn * {edge}u + l % {edge}u;\n{head}\n"
        + "".join(f"var c{i}{j} = 0.0;" for i in cells for j in cells)
        + f"\n{loops[0]}for (var k0 = 0u; k0 < {depth}; k0 += {DEPTH}u) {{\nworkgroupBarrier();\n"
        f"if (l < {quads * edge}u) {{\nvar quad = vec4<f32>();\n{load('rq', f'col < {w.columns}', right)}"
        f"rt_[l] = quad;\n{load('lq', f'm < {w.rows}', left)}lt_[lq * {edge}u + lm] = quad;\n}}\nworkgroupBarrier();\n"
        f"for (var q = 0u; q < {quads}u; q++) {{\nlet a = q * {edge}u + ty * {block}u; let b = q * {edge}u + tx * 2u;\n"
        + "".join(f"let b{j} = rt_[b + {offset(j)}u];\n" for j in cells)
        + "".join(f"let a{i} = lt_[a + {i}u];\n" for i in cells)
        + "".join(f"c{i}{j} += dot(a{i}, b{j});\n" for i in cells for j in cells)
        + f"}}\n}}\n{loops[1]}let row = tm * {edge}u + ty * {block}u; let column = tn * {edge}u + tx * 2u;\n"
        + "".join(f"if (row + {i}u < {w.rows}) {{\n{store[i]}\n}}\n" for i in cells)
        + "}"
    )


def offset(j: int) -> int:
    """Where result ``j`` of an invocation lies: pairs, so that 16-bit results fill words, 16 pairs apart."""
    return 32 * (j // 2) + j % 2


def tile_words(w: Words, rows: int, columns: int, tiles: tuple[int, int, int, int]) -> None:
    w.u32("rows", rows)
    w.u32("columns", columns)
    w.u32("tiles_m", tiles[1])
    w.u32("tiles_n", tiles[2])
    w.u32("tiles", tiles[3])
