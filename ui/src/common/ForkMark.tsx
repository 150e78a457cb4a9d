/** The mark of a branch; a drawing, since few fonts have the sign. */

export function ForkMark() {
  return (
    <svg class="fork-mark" width="10" height="12" viewBox="0 0 10 12" aria-hidden="true">
      <path d="M2 1v10M2 7c0-3 6-1 6-5V1" />
    </svg>
  )
}
