// Linear layers over grouped weights with codes of 8 bits.

#include "linear_grouped.h"

GROUPED_FUNCTIONS(, BFloat16, 8)
GROUPED_FUNCTIONS(, float, 8)
