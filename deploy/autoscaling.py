"""The autoscaling policy of worker stages.

Their traffic is gRPC, which Serve does not count, so the replicas report their own load and this
policy divides it. It runs in Serve's controller: it must not block or raise.
"""

from __future__ import annotations

import math
from typing import Any

LOAD = "load"
"""Key of `record_autoscaling_stats`: requests or items that run or wait."""

POLICY = {"policy_function": "deploy.autoscaling:by_load"}


def by_load(context: Any) -> tuple[int, dict[str, Any]]:
    """As many replicas as keep `target_ongoing_requests` on each.

    Args:
        context: Serve's `AutoscalingContext`.
    """
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    if context.current_num_replicas == 0 or not loads:
        # Called while the first replica starts, too: no metrics yet is not "no load".
        return context.target_num_replicas, {}
    target = context.config.get_target_ongoing_requests() if context.config else 2.0
    return max(1, math.ceil(sum(loads.values()) / target)), {}
