// Linear layers over grouped weights with codes of 6 bits.

#include "linear_grouped.h"

GROUPED_FUNCTIONS(, BFloat16, 6)
GROUPED_FUNCTIONS(, float, 6)
