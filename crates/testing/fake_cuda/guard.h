// Part of every compiled kernel library. A launch that accesses memory that is not allocated returns, instead of ending
// the process: the driver's signal handler calls guard_leave.
static thread_local sigjmp_buf guard_return;

EXPORTED const char* guarded_launch(const char* name, const unsigned grid[3], const unsigned block[3],
                                    void** arguments) {
    if (sigsetjmp(guard_return, 1)) return "it touches an address that is not in device memory";
    return launch(name, grid, block, arguments);
}

EXPORTED void guard_leave() { siglongjmp(guard_return, 1); }
