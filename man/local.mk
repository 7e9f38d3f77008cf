# man/: mdoc; linted by the style leg of scripts/check.

dist_man_MANS += man/kvtd.8
dist_man_MANS += man/kvtd.conf.5
dist_man_MANS += man/libkvt.3
dist_man_MANS += man/kvtctl.1
dist_man_MANS += man/kvtbench.1
