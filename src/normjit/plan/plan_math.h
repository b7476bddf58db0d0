// templates/plan_math.cuh for the planner.
#pragma once

#define NJ_MATH constexpr
#include <plan_math.cuh>
#undef NJ_MATH
