"""The parts of the CPU runtime in LLVM IR (see runtime.py): tickets, chunks, costs, sleeping, Copy
and Fill. `FIELD name` stands for the address of a field of the pool, `PAUSE` for the processor's
spin hint, `@CLOCK` for its cycle or tick counter."""

PARTS = """\
define i64 @weft_clock() #0 {
  %t = call i64 @CLOCK()
  ret i64 %t
}

; Takes a chunk from the ticket at `word`: how many were left, 0 for none.
define internal i32 @take(ptr %word) #0 {
entry:
  %first = load atomic i64, ptr %word acquire, align 8
  br label %try
try:
  %now = phi i64 [ %first, %entry ], [ %seen, %swap ]
  %left = trunc i64 %now to i32
  %none = icmp eq i32 %left, 0
  br i1 %none, label %nothing, label %swap
swap:
  %next = sub i64 %now, 1
  %pair = cmpxchg ptr %word, i64 %now, i64 %next acq_rel acquire, align 8
  %seen = extractvalue { i64, i1 } %pair, 0
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %taken, label %try
taken:
  ret i32 %left
nothing:
  ret i32 0
}

; A chunk of thread `me`'s own slice, else of the others' in turn: slice << 32 | left, or 0.
define internal i64 @grab(ptr %pool, i64 %me, i64 %threads) #0 {
entry:
  %tickets = FIELD tickets
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %k.next, %none ]
  %straight = add i64 %me, %k
  %wrapped = sub i64 %straight, %threads
  %over = icmp sge i64 %straight, %threads
  %slice = select i1 %over, i64 %wrapped, i64 %straight
  %word = getelementptr [64 x i8], ptr %tickets, i64 %slice
  %left = call i32 @take(ptr %word)
  %empty = icmp eq i32 %left, 0
  br i1 %empty, label %none, label %found
none:
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %threads
  br i1 %more, label %look, label %nothing
found:
  %left64 = zext i32 %left to i64
  %high = shl i64 %slice, 32
  %packed = or i64 %high, %left64
  ret i64 %packed
nothing:
  ret i64 0
}

define internal void @play(ptr %entry, ptr %scalars, i64 %begin, i64 %end, ptr %scratch) #0 {
  %fn = load ptr, ptr %entry
  %args.at = getelementptr i8, ptr %entry, i64 8
  %args = load ptr, ptr %args.at
  %gx.at = getelementptr i8, ptr %entry, i64 16
  %gx = load i32, ptr %gx.at
  %gy.at = getelementptr i8, ptr %entry, i64 20
  %gy = load i32, ptr %gy.at
  %gz.at = getelementptr i8, ptr %entry, i64 24
  %gz = load i32, ptr %gz.at
  call void %fn(ptr %args, ptr %scalars, i32 %gx, i32 %gy, i32 %gz,
                i64 %begin, i64 %end, ptr %scratch)
  ret void
}

; The first chunk of slice `slice` when `threads` slices share `chunks` chunks.
define internal i64 @first(i64 %slice, i64 %threads, i64 %chunks) #0 {
  %product = mul i64 %slice, %chunks
  %first = udiv i64 %product, %threads
  ret i64 %first
}

; Plays the chunk that `grab` returned as `ticket`; returns its number of groups.
define internal i64 @chunk(ptr %entry, i64 %ticket, i64 %threads, ptr %scalars, ptr %scratch) #0 {
  %groups.at = getelementptr i8, ptr %entry, i64 32
  %groups = load i64, ptr %groups.at
  %size.at = getelementptr i8, ptr %entry, i64 40
  %size = load i64, ptr %size.at
  %chunks.at = getelementptr i8, ptr %entry, i64 48
  %chunks = load i32, ptr %chunks.at
  %chunks64 = zext i32 %chunks to i64
  %left = and i64 %ticket, 4294967295
  %slice = lshr i64 %ticket, 32
  %slice.next = add i64 %slice, 1
  %beyond = call i64 @first(i64 %slice.next, i64 %threads, i64 %chunks64)
  %number = sub i64 %beyond, %left
  %begin = mul i64 %number, %size
  %full = add i64 %begin, %size
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %groups)
  call void @play(ptr %entry, ptr %scalars, i64 %begin, i64 %end, ptr %scratch)
  %count = sub i64 %end, %begin
  ret i64 %count
}

; Falls at once to a lower cost per group and rises slowly, so that an interruption counts little.
define internal void @learn(ptr %entry, i64 %ticks, i64 %groups) #0 {
start:
  %none = icmp sle i64 %groups, 0
  br i1 %none, label %done, label %measure
measure:
  %scaled = shl i64 %ticks, 8
  %each = udiv i64 %scaled, %groups
  %now = call i64 @llvm.smax.i64(i64 %each, i64 1)
  %cost.at = getelementptr i8, ptr %entry, i64 56
  %old = load i64, ptr %cost.at
  %step = sub i64 %now, %old
  %eighth = ashr i64 %step, 3
  %slow = add i64 %old, %eighth
  %lower = icmp slt i64 %now, %old
  %unknown = icmp eq i64 %old, 0
  %direct = or i1 %lower, %unknown
  %new = select i1 %direct, i64 %now, i64 %slow
  store i64 %new, ptr %cost.at
  br label %done
done:
  ret void
}

define internal void @futex_wake(ptr %pool, ptr %word, i64 %count) #0 {
entry:
  %call.at = FIELD syscall
  %call = load ptr, ptr %call.at
  %missing = icmp eq ptr %call, null
  br i1 %missing, label %done, label %wake
wake:
  %number.at = FIELD futex
  %number = load i64, ptr %number.at
  %r = call i64 (i64, ...) %call(i64 %number, ptr %word, i64 129, i64 %count, i64 0, i64 0, i64 0)
  br label %done
done:
  ret void
}

; Sleeps while *word is `seen`; where there is no futex, gives up the time slice.
define internal void @futex_wait(ptr %pool, ptr %word, i32 %seen) #0 {
entry:
  %call.at = FIELD syscall
  %call = load ptr, ptr %call.at
  %missing = icmp eq ptr %call, null
  br i1 %missing, label %give, label %sleep
sleep:
  %number.at = FIELD futex
  %number = load i64, ptr %number.at
  %seen64 = zext i32 %seen to i64
  %r = call i64 (i64, ...) %call(i64 %number, ptr %word, i64 128, i64 %seen64, i64 0, i64 0, i64 0)
  ret void
give:
  %yield.at = FIELD yield
  %yield = load ptr, ptr %yield.at
  %s = call i32 %yield()
  ret void
}

define internal void @wait_done(ptr %pool, i32 %chunks) #0 {
entry:
  %done.at = FIELD done
  %waits.at = FIELD caller_waits
  %spins.at = FIELD spins
  %limit = load i32, ptr %spins.at
  br label %spin
spin:
  %i = phi i32 [ 0, %entry ], [ %i.next, %pausing ]
  %seen = load atomic i32, ptr %done.at acquire, align 4
  %all = icmp eq i32 %seen, %chunks
  br i1 %all, label %out, label %more
more:
  %patient = icmp slt i32 %i, %limit
  br i1 %patient, label %pausing, label %sleep
pausing:
  PAUSE
  %i.next = add i32 %i, 1
  br label %spin
sleep:
  store atomic i32 1, ptr %waits.at seq_cst, align 4
  %again = load atomic i32, ptr %done.at seq_cst, align 4
  %finished = icmp eq i32 %again, %chunks
  br i1 %finished, label %woken, label %doze
doze:
  call void @futex_wait(ptr %pool, ptr %done.at, i32 %again)
  br label %sleep
woken:
  store atomic i32 0, ptr %waits.at seq_cst, align 4
  br label %out
out:
  ret void
}

; args: destination, source, bytes, bytes per group
define void @weft_copy(ptr %args, ptr %s, i32 %x, i32 %y, i32 %z, i64 %begin, i64 %end, ptr %w) #0 {
  %to = load ptr, ptr %args
  %from.at = getelementptr ptr, ptr %args, i64 1
  %from = load ptr, ptr %from.at
  %bytes.at = getelementptr i64, ptr %args, i64 2
  %bytes = load i64, ptr %bytes.at
  %size.at = getelementptr i64, ptr %args, i64 3
  %size = load i64, ptr %size.at
  %first = mul i64 %begin, %size
  %full = mul i64 %end, %size
  %last = call i64 @llvm.smin.i64(i64 %full, i64 %bytes)
  %count = sub i64 %last, %first
  %d = getelementptr i8, ptr %to, i64 %first
  %o = getelementptr i8, ptr %from, i64 %first
  call void @llvm.memmove.p0.p0.i64(ptr %d, ptr %o, i64 %count, i1 false)
  ret void
}

; args: destination, byte, bytes, bytes per group
define void @weft_fill(ptr %args, ptr %s, i32 %x, i32 %y, i32 %z, i64 %begin, i64 %end, ptr %w) #0 {
  %to = load ptr, ptr %args
  %byte.at = getelementptr i64, ptr %args, i64 1
  %byte64 = load i64, ptr %byte.at
  %byte = trunc i64 %byte64 to i8
  %bytes.at = getelementptr i64, ptr %args, i64 2
  %bytes = load i64, ptr %bytes.at
  %size.at = getelementptr i64, ptr %args, i64 3
  %size = load i64, ptr %size.at
  %first = mul i64 %begin, %size
  %full = mul i64 %end, %size
  %last = call i64 @llvm.smin.i64(i64 %full, i64 %bytes)
  %count = sub i64 %last, %first
  %d = getelementptr i8, ptr %to, i64 %first
  call void @llvm.memset.p0.i64(ptr %d, i8 %byte, i64 %count, i1 false)
  ret void
}

declare i64 @CLOCK()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
attributes #0 = { nounwind }
"""
