"""The LLVM IR of the CPU runtime (see runtime.py). `FIELD name` stands for the address of a field
of the pool, `PAUSE` for the processor's spin hint, `@CLOCK` for its cycle or tick counter."""

TEXT = """\
define i64 @weft_clock() #0 {
  %t = call i64 @CLOCK()
  ret i64 %t
}

define internal i32 @take(ptr %pool) #0 {
entry:
  %first = load atomic i64, ptr %pool acquire, align 8
  br label %try
try:
  %now = phi i64 [ %first, %entry ], [ %seen, %swap ]
  %left = trunc i64 %now to i32
  %none = icmp eq i32 %left, 0
  br i1 %none, label %nothing, label %swap
swap:
  %next = sub i64 %now, 1
  %pair = cmpxchg ptr %pool, i64 %now, i64 %next acq_rel acquire, align 8
  %seen = extractvalue { i64, i1 } %pair, 0
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %taken, label %try
taken:
  ret i32 %left
nothing:
  ret i32 0
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

; Plays the chunk that a ticket with `left` chunks stands for; returns its number of groups.
define internal i64 @chunk(ptr %entry, i32 %left, ptr %scalars, ptr %scratch) #0 {
  %groups.at = getelementptr i8, ptr %entry, i64 32
  %groups = load i64, ptr %groups.at
  %size.at = getelementptr i8, ptr %entry, i64 40
  %size = load i64, ptr %size.at
  %chunks.at = getelementptr i8, ptr %entry, i64 48
  %chunks = load i32, ptr %chunks.at
  %number32 = sub i32 %chunks, %left
  %number = zext i32 %number32 to i64
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

define internal void @parallel(ptr %pool, ptr %entry, i64 %work, ptr %scalars, ptr %scratch) #0 {
start:
  %groups.at = getelementptr i8, ptr %entry, i64 32
  %groups = load i64, ptr %groups.at
  %threads.at = FIELD threads
  %threads32 = load i32, ptr %threads.at
  %threads = zext i32 %threads32 to i64
  %most = shl i64 %threads, 4
  %ticks.at = FIELD chunk_ticks
  %ticks = load i64, ptr %ticks.at
  %cut = udiv i64 %work, %ticks
  %unknown = icmp eq i64 %work, 0
  %wish = select i1 %unknown, i64 %most, i64 %cut
  %wish.low = call i64 @llvm.smax.i64(i64 %wish, i64 %threads)
  %wanted = call i64 @llvm.smin.i64(i64 %wish.low, i64 %most)
  %round = add i64 %groups, %wanted
  %round.1 = sub i64 %round, 1
  %size = udiv i64 %round.1, %wanted
  %fill = add i64 %groups, %size
  %fill.1 = sub i64 %fill, 1
  %chunks64 = udiv i64 %fill.1, %size
  %chunks = trunc i64 %chunks64 to i32
  %size.at = getelementptr i8, ptr %entry, i64 40
  store i64 %size, ptr %size.at
  %chunks.at = getelementptr i8, ptr %entry, i64 48
  store i32 %chunks, ptr %chunks.at
  %entry.at = FIELD entry
  store ptr %entry, ptr %entry.at
  %done.at = FIELD done
  store atomic i32 0, ptr %done.at monotonic, align 4
  %old = load atomic i64, ptr %pool monotonic, align 8
  %step = lshr i64 %old, 32
  %step.next = add i64 %step, 1
  %high = shl i64 %step.next, 32
  %ticket = or i64 %high, %chunks64
  %was = atomicrmw xchg ptr %pool, i64 %ticket seq_cst, align 8
  %sleepers.at = FIELD sleepers
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp sgt i32 %sleepers, 0
  br i1 %asleep, label %wake, label %take
wake:
  %wake.at = FIELD wake
  %w = atomicrmw add ptr %wake.at, i32 1 seq_cst, align 4
  %others = sub i64 %chunks64, 1
  call void @futex_wake(ptr %pool, ptr %wake.at, i64 %others)
  br label %take
take:
  %own.groups = phi i64 [ 0, %start ], [ 0, %wake ], [ %sum.groups, %work.one ]
  %own.ticks = phi i64 [ 0, %start ], [ 0, %wake ], [ %sum.ticks, %work.one ]
  %own.chunks = phi i32 [ 0, %start ], [ 0, %wake ], [ %sum.chunks, %work.one ]
  %left = call i32 @take(ptr %pool)
  %none = icmp eq i32 %left, 0
  br i1 %none, label %finish, label %work.one
work.one:
  %t0 = call i64 @CLOCK()
  %count = call i64 @chunk(ptr %entry, i32 %left, ptr %scalars, ptr %scratch)
  %t1 = call i64 @CLOCK()
  %spent = sub i64 %t1, %t0
  %sum.groups = add i64 %own.groups, %count
  %sum.ticks = add i64 %own.ticks, %spent
  %sum.chunks = add i32 %own.chunks, 1
  br label %take
finish:
  %before = atomicrmw add ptr %done.at, i32 %own.chunks acq_rel, align 4
  call void @wait_done(ptr %pool, i32 %chunks)
  call void @learn(ptr %entry, i64 %own.ticks, i64 %own.groups)
  ret void
}

define void @weft_run(ptr %pool, ptr %table, i64 %steps, ptr %scalars) #0 {
start:
  %scalars.at = FIELD scalars
  store ptr %scalars, ptr %scalars.at
  %scratch.at = FIELD scratch
  %scratch = load ptr, ptr %scratch.at
  %threads.at = FIELD threads
  %threads = load i32, ptr %threads.at
  %alone = icmp sle i32 %threads, 1
  %serial.at = FIELD serial_ticks
  %serial.ticks = load i64, ptr %serial.at
  %wake.at = FIELD wake_ticks
  %wake.ticks = load i64, ptr %wake.at
  %sleepers.at = FIELD sleepers
  %any = icmp sgt i64 %steps, 0
  br i1 %any, label %step, label %out
step:
  %i = phi i64 [ 0, %start ], [ %i.next, %next ]
  %entry = getelementptr [64 x i8], ptr %table, i64 %i
  %groups.at = getelementptr i8, ptr %entry, i64 32
  %groups = load i64, ptr %groups.at
  %empty = icmp sle i64 %groups, 0
  br i1 %empty, label %next, label %weigh
weigh:
  %cost.at = getelementptr i8, ptr %entry, i64 56
  %cost = load i64, ptr %cost.at
  %scaled = mul i64 %cost, %groups
  %work = lshr i64 %scaled, 8
  %sleepers = load atomic i32, ptr %sleepers.at monotonic, align 4
  %asleep = icmp sgt i32 %sleepers, 0
  %limit = select i1 %asleep, i64 %wake.ticks, i64 %serial.ticks
  %known = icmp ne i64 %cost, 0
  %little = icmp slt i64 %work, %limit
  %tiny = and i1 %known, %little
  %single = icmp eq i64 %groups, 1
  %short = or i1 %tiny, %single
  %serial = or i1 %short, %alone
  br i1 %serial, label %here, label %shared
here:
  %t0 = call i64 @CLOCK()
  call void @play(ptr %entry, ptr %scalars, i64 0, i64 %groups, ptr %scratch)
  %t1 = call i64 @CLOCK()
  %spent = sub i64 %t1, %t0
  call void @learn(ptr %entry, i64 %spent, i64 %groups)
  br label %next
shared:
  call void @parallel(ptr %pool, ptr %entry, i64 %work, ptr %scalars, ptr %scratch)
  br label %next
next:
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %steps
  br i1 %more, label %step, label %out
out:
  ret void
}

define i32 @weft_worker(ptr %pool, ptr %scratch) #0 {
start:
  %entry.at = FIELD entry
  %scalars.at = FIELD scalars
  %done.at = FIELD done
  %waits.at = FIELD caller_waits
  %wake.at = FIELD wake
  %sleepers.at = FIELD sleepers
  %stop.at = FIELD stop
  %spins.at = FIELD spins
  %limit = load i32, ptr %spins.at
  br label %look
look:
  %i = phi i32 [ 0, %start ], [ 0, %finished ], [ 0, %wake.caller ], [ 0, %awake ],
           [ %i.next, %pausing ]
  %left = call i32 @take(ptr %pool)
  %none = icmp eq i32 %left, 0
  br i1 %none, label %idle, label %work
work:
  %entry = load ptr, ptr %entry.at
  %scalars = load ptr, ptr %scalars.at
  %chunks.at = getelementptr i8, ptr %entry, i64 48
  %chunks = load i32, ptr %chunks.at
  %count = call i64 @chunk(ptr %entry, i32 %left, ptr %scalars, ptr %scratch)
  %before = atomicrmw add ptr %done.at, i32 1 seq_cst, align 4
  br label %finished.check
finished.check:
  %now = add i32 %before, 1
  %last = icmp eq i32 %now, %chunks
  %waits = load atomic i32, ptr %waits.at seq_cst, align 4
  %waiting = icmp ne i32 %waits, 0
  %both = and i1 %last, %waiting
  br i1 %both, label %wake.caller, label %finished
wake.caller:
  call void @futex_wake(ptr %pool, ptr %done.at, i64 1)
  br label %look
finished:
  br label %look
idle:
  %patient = icmp slt i32 %i, %limit
  br i1 %patient, label %pausing, label %tired
pausing:
  PAUSE
  %i.next = add i32 %i, 1
  br label %look
tired:
  %told = load atomic i32, ptr %stop.at seq_cst, align 4
  %stopping = icmp ne i32 %told, 0
  br i1 %stopping, label %leave, label %prepare
prepare:
  %syscall.at = FIELD syscall
  %syscall = load ptr, ptr %syscall.at
  %missing = icmp eq ptr %syscall, null
  br i1 %missing, label %resign, label %bed
bed:
  %s = atomicrmw add ptr %sleepers.at, i32 1 seq_cst, align 4
  %seen = load atomic i32, ptr %wake.at seq_cst, align 4
  %ticket = load atomic i64, ptr %pool seq_cst, align 8
  %ticket.left = trunc i64 %ticket to i32
  %quiet = icmp eq i32 %ticket.left, 0
  %told.2 = load atomic i32, ptr %stop.at seq_cst, align 4
  %keep = icmp eq i32 %told.2, 0
  %sleeping = and i1 %quiet, %keep
  br i1 %sleeping, label %sleep, label %awake
sleep:
  call void @futex_wait(ptr %pool, ptr %wake.at, i32 %seen)
  br label %awake
awake:
  %a = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst, align 4
  br label %look
resign:
  ret i32 1
leave:
  ret i32 0
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
