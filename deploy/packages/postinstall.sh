#!/bin/sh
# Makes the units' user; no unit is started. DPKG_ROOT is set where a package is
# installed into another root.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers ${DPKG_ROOT:+--root="$DPKG_ROOT"} kvatlas.conf
fi
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
