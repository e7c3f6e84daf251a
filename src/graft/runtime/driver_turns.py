"""What the native driver does between two turns of a loop, as LLVM IR.

A loop whose body is one program is a program, too: after the body's last step comes one more, which
leads the kernels to the next turn's memory. Driver and run time agree on its words in `agreement`.
"""

from __future__ import annotations

ADVANCE_TEXT = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Between two turns of a loop, whose memory is: whether there is another turn, turns so far and at
; most, where the number of the turn and the condition are, how many moves there are; then these.
; A move adds to a word (0), changes between two addresses in a word (1), or copies from where a
; word says to where it says itself, and says by how much that goes on (2).
define void @graft_advance(ptr %buffers, ptr %loop, i64 %thread, i64 %threads,
                           ptr %shared) nounwind {
entry:
  %turns.at = getelementptr i8, ptr %loop, i64 8
  %turns = load i64, ptr %turns.at, align 8
  %turns.now = add i64 %turns, 1
  store i64 %turns.now, ptr %turns.at, align 8
  %most.at = getelementptr i8, ptr %loop, i64 16
  %most = load i64, ptr %most.at, align 8
  %within = icmp slt i64 %turns.now, %most
  %number.at.at = getelementptr i8, ptr %loop, i64 24
  %number.at = load ptr, ptr %number.at.at, align 8
  %number = load i64, ptr %number.at, align 8
  %number.now = add i64 %number, 1
  store i64 %number.now, ptr %number.at, align 8
  %flag.at.at = getelementptr i8, ptr %loop, i64 32
  %flag.at = load ptr, ptr %flag.at.at, align 8
  %flag = load i8, ptr %flag.at, align 1
  %holds = icmp ne i8 %flag, 0
  %again = and i1 %within, %holds
  %again.wide = zext i1 %again to i64
  store i64 %again.wide, ptr %loop, align 8
  %count.at = getelementptr i8, ptr %loop, i64 40
  %count = load i64, ptr %count.at, align 8
  %moves = getelementptr i8, ptr %loop, i64 48
  br label %check
check:
  %index = phi i64 [ 0, %entry ], [ %next, %moved ]
  %over = icmp sge i64 %index, %count
  br i1 %over, label %done, label %move
move:
  %at = getelementptr [5 x i64], ptr %moves, i64 %index
  %kind = load i64, ptr %at, align 8
  %target.at = getelementptr i8, ptr %at, i64 8
  %target = load ptr, ptr %target.at, align 8
  %amount.at = getelementptr i8, ptr %at, i64 16
  %amount = load i64, ptr %amount.at, align 8
  %copies = icmp eq i64 %kind, 2
  br i1 %copies, label %copy, label %change
copy:
  %source.at = inttoptr i64 %amount to ptr
  %source = load ptr, ptr %source.at, align 8
  %bytes.at = getelementptr i8, ptr %at, i64 24
  %bytes = load i64, ptr %bytes.at, align 8
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  %step.at = getelementptr i8, ptr %at, i64 32
  %step = load i64, ptr %step.at, align 8
  %target.next = getelementptr i8, ptr %target, i64 %step
  store ptr %target.next, ptr %target.at, align 8
  br label %moved
change:
  %word = load i64, ptr %target, align 8
  %sum = add i64 %word, %amount
  %other = xor i64 %word, %amount
  %adds = icmp eq i64 %kind, 0
  %word.now = select i1 %adds, i64 %sum, i64 %other
  store i64 %word.now, ptr %target, align 8
  br label %moved
moved:
  %next = add i64 %index, 1
  br label %check
done:
  ret void
}
"""
