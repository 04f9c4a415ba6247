"""The alphabet of shapes, and arrays that several modules take.

The whole repository writes shapes in one alphabet:

    B  batch rows         D  d_model          V  vocabulary
    S  source length      F  d_ff             W  beam width
    T  target length      H  heads            L  any length
    K  head size of queries and keys (d_k); values have head size d_v, written U

Within a call a letter has one value. `*L` stands for any number of axes, `#B` for B or
1, `{length}` for the value of an argument, and `_` for an axis of any length. `B*W` is
a product; `HU` is a name of its own. Other letters, such as R, belong to a module. The
space before a single letter keeps linters from reading it as a name.
"""

from jaxtyping import Array, Bool, Float, Float32, Int, Key, Shaped

AnyArray = Shaped[Array, "..."]
Floats = Float[Array, "*L"]  # of one shape within a call
Integer = Int[Array, ""]
RandomKey = Key[Array, ""]
Flags = dict[str, Bool[Array, ""]]  # by name

Ids = Int[Array, "B L"]  # of tokens, positions or sentences (segments; 0: padding)
Vectors = Float[Array, "B L D"]  # of tokens
Sources = Float[Array, "B S D"]
Targets = Float[Array, "B T D"]
Columns = Float[Array, "D R"]  # vectors of R = B W hypotheses
Vector = Float[Array, " D"]
Table = Float[Array, "V D"]

Queries = Float[Array, "B T H K"]
Keys = Float[Array, "B S H K"]
Values = Float[Array, "B S H U"]
Heads = Float[Array, "B T H U"]
Scores = Float32[Array, "B H T S"]
ArrayMask = Bool[Array, "#B #H #T #S"]  # True: may see
