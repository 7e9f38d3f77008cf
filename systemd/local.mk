# systemd/: units.

if SYSTEMD_UNITS
dist_systemdsystemunit_DATA =
#dist_systemdsystemunit_DATA += systemd/kvtd.service
endif
