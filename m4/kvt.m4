# SPDX-License-Identifier: Apache-2.0

# KVT_PKG(VARIABLE, MODULES, DEBIAN-PACKAGE)
# ------------------------------------------
# A library that the build needs. What is missing is collected and reported at once
# by KVT_PKG_REPORT, with the packages to install.
AC_DEFUN([KVT_PKG], [
  PKG_CHECK_MODULES([$1], [$2], [], [
    kvt_missing="$kvt_missing
    $2  (Debian: $3)"
    kvt_missing_debs="$kvt_missing_debs $3"
  ])
])

AC_DEFUN([KVT_PKG_REPORT], [
  AS_IF([test -n "$kvt_missing"], [
    AC_MSG_ERROR([missing, all needed:$kvt_missing
  cure on Debian: apt install$kvt_missing_debs])
  ])
])

# KVT_SEAM(NAME, WHAT)
# --------------------
# --with-NAME=auto|yes|no for a backend that is not written yet: auto and no say so in the
# summary (kvt_NAME), yes fails rather than build a program without it.
AC_DEFUN([KVT_SEAM], [
  AC_ARG_WITH([$1],
    [AS_HELP_STRING([--with-$1=auto|yes|no], [$2 (not implemented yet) @<:@auto@:>@])],
    [], [with_$1=auto])
  AS_CASE([$with_$1],
    [auto], [kvt_$1="absent: not built yet"],
    [no], [kvt_$1="no"],
    [yes], [AC_MSG_ERROR([--with-$1=yes: not implemented yet, $2 comes in a later version])],
    [AC_MSG_ERROR([--with-$1=$with_$1: give auto, yes or no])])
])

# KVT_FLAG(VARIABLE, FLAG)
# ------------------------
# Appends FLAG to VARIABLE if the compiler and the linker take it.
AC_DEFUN([KVT_FLAG], [
  AC_MSG_CHECKING([whether $CC takes $2])
  kvt_save_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -Werror $2"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes]); $1="$$1 $2"],
    [AC_MSG_RESULT([no])])
  CFLAGS=$kvt_save_CFLAGS
])
