"""Kernels in Triton, one op per file, for CUDA; each has the reference of the file of the same name one level up.

Nothing here is imported before a CUDA device is asked for. Without a GPU the kernels run in Triton's interpreter
(TRITON_INTERPRET=1, read when triton is imported), in float32 and float16: its bfloat16 arithmetic is wrong, so every
kernel widens what it loads at once, and products take operands widened where the interpreter runs.
"""
