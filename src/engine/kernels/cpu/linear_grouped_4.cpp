// Linear layers over grouped weights with codes of 4 bits.

#include "linear_grouped.h"

GROUPED_FUNCTIONS(, BFloat16, 4)
GROUPED_FUNCTIONS(, float, 4)
