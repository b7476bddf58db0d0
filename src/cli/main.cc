#include "cli/cli.h"

int main(int argc, char** argv) { return normjit::cli::run(argc, argv); }
