#!/bin/sh
# The data in /var/lib/kvatlas and the user stay.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
