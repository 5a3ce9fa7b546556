# Finds the CUDA toolkit and adds the CUDA backend to a library.
# Sets FERRY_WITH_CUDA, and FERRY_CUDA_LIBS: what programs link for it, with a blank behind it, or empty.
set(FERRY_WITH_CUDA OFF)
set(FERRY_CUDA_LIBS "")
set(FERRY_CUDA_LINK "")

if(FERRY_CUDA STREQUAL "OFF")
  return()
elseif(NOT FERRY_CUDA STREQUAL "ON" AND NOT FERRY_CUDA STREQUAL "AUTO")
  message(FATAL_ERROR "FERRY_CUDA is ON, OFF or AUTO, not '${FERRY_CUDA}'")
elseif(FERRY_SANITIZE OR FERRY_FUZZ)
  if(FERRY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FERRY_CUDA=ON does not go with sanitizers and fuzzers")
  endif()
  return()
endif()

find_program(FERRY_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT FERRY_NVCC)
  if(FERRY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FERRY_CUDA=ON, but nvcc was not found: put it into PATH or set CUDA_HOME")
  endif()
  message(STATUS "no nvcc: without the CUDA backend")
  return()
endif()
file(REAL_PATH ${FERRY_NVCC} nvcc_real)
get_filename_component(cuda_root ${nvcc_real}/../.. ABSOLUTE)
find_path(FERRY_CUDA_INCLUDE cublas_v2.h HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
find_library(FERRY_CUDART libcudart_static.a HINTS ${cuda_root}/lib64 ${cuda_root}/lib
  ${cuda_root}/targets/x86_64-linux/lib)
find_path(FERRY_CUPTI_INCLUDE cupti.h HINTS ${FERRY_CUDA_INCLUDE} ${cuda_root}/include ${cuda_root}/extras/CUPTI/include)
if(NOT FERRY_CUDA_INCLUDE OR NOT FERRY_CUDART OR NOT FERRY_CUPTI_INCLUDE)
  if(FERRY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "nvcc is here, but cublas_v2.h, cupti.h or libcudart_static.a is not: install the whole CUDA toolkit")
  endif()
  message(STATUS "an incomplete CUDA toolkit: without the CUDA backend")
  return()
endif()
set(FERRY_WITH_CUDA ON)
file(STRINGS ${FERRY_CUDA_INCLUDE}/cuda.h cuda_version REGEX "^#define CUDA_VERSION [0-9]+$")
string(REGEX REPLACE ".* ([0-9]+)[0-9][0-9][0-9]$" "\\1" FERRY_CUDA_MAJOR "${cuda_version}")
set(FERRY_CUDA_LINK ${FERRY_CUDART} ${CMAKE_DL_LIBS} rt)
set(FERRY_CUDA_LIBS "${FERRY_CUDART} -ldl -lrt ")
message(STATUS "CUDA backend: ${nvcc_real}, sm_${FERRY_CUDA_ARCH}")

# Files whose kernels compute element by element: without contraction of a*b+c, as on the host, so that the kernels of a
# chain and the one kernel that they become give the same bits.
set(FERRY_CUDA_EXACT cuda_elementwise cuda_fused cuda_move cuda_packed)

# GPU code is compiled by nvcc itself: as a CMake language it would also change how every program is linked. No exceptions
# and no guards for statics: the library stays free of the C++ runtime.
function(ferry_add_cuda target)
  file(GLOB c_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/cuda_*.c)
  file(GLOB cu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/cuda_*.cu)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
  foreach(source ${cu_sources})
    get_filename_component(name ${source} NAME_WE)
    set(contract true)
    if(name IN_LIST FERRY_CUDA_EXACT)
      set(contract false)
    endif()
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${FERRY_NVCC} -arch=sm_${FERRY_CUDA_ARCH} -std=c++20 -O3 -fmad=${contract} -I${PROJECT_SOURCE_DIR}
              -Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
              --Werror all-warnings -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Building GPU code ${name}.cu"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  target_sources(${target} PRIVATE ${c_sources} ${objects})
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set_source_files_properties(${c_sources} PROPERTIES COMPILE_OPTIONS "-isystem;${FERRY_CUDA_INCLUDE}")
  target_compile_definitions(${target} PRIVATE FERRY_CUDA=1)
  target_link_libraries(${target} PUBLIC ${FERRY_CUDA_LINK})
endfunction()

# The profiler's files that need headers of CUDA or CUPTI; CUPTI itself is looked for at run time.
function(ferry_add_cupti target)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/profiler/cuda_*.c ${PROJECT_SOURCE_DIR}/profiler/cupti_*.c)
  target_sources(${target} PRIVATE ${sources})
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS
    "-isystem;${FERRY_CUDA_INCLUDE};-isystem;${FERRY_CUPTI_INCLUDE}")
  target_compile_definitions(${target} PRIVATE FERRY_CUDA=1 FERRY_CUDA_MAJOR=${FERRY_CUDA_MAJOR})
endfunction()
