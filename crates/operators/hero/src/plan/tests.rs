//! Tables of the plan.
