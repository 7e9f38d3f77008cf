#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvtd as a unit of Type=notify: active only once it is ready, reloads, stops in good order.
. tests/vm/lib.sh

systemctl --no-pager --no-legend list-units --failed
systemd-analyze time || true
systemctl is-active systemd-udevd.service
